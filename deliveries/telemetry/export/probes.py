"""Checks of what PushHub depends on, each with a result before a deadline whatever hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from enum import StrEnum

from pushhub.common.outages import outage_of

logger = logging.getLogger(__name__)

Check = Callable[[], "Component"]


class Status(StrEnum):
    """How a component stands. Only `unavailable` makes PushHub not ready."""

    OK = "ok"
    DEGRADED = "degraded"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Component:
    """The result of one check: the status, the reason if it is not `ok`, figures, and a text for any status."""

    status: Status
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    state: str = ""


class Probes:
    """Runs checks in threads of their own. A check that is still running is not started a second time."""

    def __init__(self, checks: Mapping[str, Check], *, deadline_seconds: float) -> None:
        self._checks = checks
        self._deadline_seconds = deadline_seconds
        self._lock = threading.Lock()
        self._running: dict[str, Future[Component]] = {}

    def results(self, *, exclude: frozenset[str] = frozenset()) -> dict[str, Component]:
        """Return the result of each check; one that does not end before the deadline is unavailable."""
        futures = {name: self._start(name) for name in self._checks if name not in exclude}
        wait(futures.values(), self._deadline_seconds)
        late = Component(Status.UNAVAILABLE, "no answer in time")
        return {name: future.result() if future.done() else late for name, future in futures.items()}

    def _start(self, name: str) -> Future[Component]:
        with self._lock:
            future = self._running.get(name)
            if future is None or future.done():
                future = self._running[name] = Future()
                threading.Thread(target=self._run, args=(name, future), name=f"probe-{name}", daemon=True).start()
            return future

    def _run(self, name: str, future: Future[Component]) -> None:
        try:
            component = self._checks[name]()
        except BaseException as error:
            logger.warning("the %s check fails", name, exc_info=error)
            component = Component(Status.UNAVAILABLE, outage_of(error) or type(error).__name__)
        future.set_result(component)
