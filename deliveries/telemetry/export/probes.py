"""Checks of what PushHub depends on, each with a result before a deadline whatever hangs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
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
        self._running: dict[str, _Run] = {}

    def results(self, *, exclude: frozenset[str] = frozenset()) -> dict[str, Component]:
        """Return the result of each check; one that does not end before the deadline is unavailable."""
        ends = time.monotonic() + self._deadline_seconds
        runs = {name: self._run(name) for name in self._checks if name not in exclude}
        return {name: run.result(max(ends - time.monotonic(), 0.0)) for name, run in runs.items()}

    def _run(self, name: str) -> _Run:
        with self._lock:
            run = self._running.get(name)
            if run is None or run.is_over:
                run = self._running[name] = _Run(name, self._checks[name])
            return run


class _Run:
    """One check under way."""

    def __init__(self, name: str, check: Check) -> None:
        self._name = name
        self._check = check
        self._component: Component | None = None
        self._over = threading.Event()
        threading.Thread(target=self._work, name=f"probe-{name}", daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def result(self, seconds: float) -> Component:
        self._over.wait(seconds)
        return self._component or Component(Status.UNAVAILABLE, "no answer in time")

    def _work(self) -> None:
        try:
            self._component = self._check()
        except Exception as error:
            logger.warning("the %s check fails", self._name, exc_info=error)
            self._component = Component(Status.UNAVAILABLE, outage_of(error) or type(error).__name__)
        finally:
            self._over.set()
