"""Applies the message transforms of push subscriptions, in threads of its own: a function may take half a second.

The subscriptions take turns, and one project's functions run in one thread at a time, because they share a sandbox. So
slow functions delay the messages of their own project, and of others only while as many projects as there are threads
have such functions.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import Reason, Verdict
from deliveries.transforming import FILTER, Wire, transform_wire_messages
from pushhub.common import names
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms.results import FILTERED, Failed, Filtered

logger = logging.getLogger(__name__)

THREADS = 2
#: The most messages of a subscription's turn, and its time limit.
TURN_MESSAGES = 250
TURN_SECONDS = 0.25
#: The pause before the next try while others use the project's sandbox.
BUSY_SECONDS = 0.05


class Transformer:
    """Transforms flights in its own threads, which start with the first flight."""

    def __init__(self, *, resume: Callable[[Sequence[Flight]], None], admit: Callable[[Flight], bool]) -> None:
        """`resume` gets the transformed flights. `admit` returns whether there is memory for a flight's new payload."""
        self._resume = resume
        self._admit = admit
        self._changed = threading.Condition()
        #: Flights by subscription. The subscription whose last turn is the longest ago comes first.
        self._waiting: OrderedDict[int, deque[Flight]] = OrderedDict()
        #: The projects whose functions are running.
        self._busy: set[str] = set()
        self._threads: list[BackgroundThread] = []

    def take_on(self, flights: Sequence[Flight]) -> None:
        """Transform these flights, which have their plans. May be called from any thread."""
        with self._changed:
            for flight in flights:
                self._waiting.setdefault(flight.lane.subscription_id, deque()).append(flight)
            if not self._threads:
                self._threads = [BackgroundThread(f"push-transformer-{i}", self._round) for i in range(THREADS)]
                for thread in self._threads:
                    thread.start()
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            threads = list(self._threads)
            for thread in threads:
                thread.stopping.set()
            self._changed.notify_all()
        for thread in threads:
            thread.stop(timeout=5)

    def _round(self) -> None:
        project, flights = self._next()
        if not flights:
            return
        remaining = list(flights)
        try:
            remaining = self._transform(project, flights)
        except ResourceExhausted:
            self._threads[0].stopping.wait(BUSY_SECONDS)
        except Exception:
            logger.exception("%d messages could not be transformed", len(flights))
            for flight in flights:
                flight.settle_as(Verdict.NACK, Reason.INTERNAL)
            remaining = []
        finally:
            with self._changed:
                self._busy.discard(project)
                if remaining:
                    waiting = self._waiting.setdefault(remaining[0].lane.subscription_id, deque())
                    waiting.extendleft(reversed(remaining))
                self._changed.notify_all()

    def _next(self) -> tuple[str, list[Flight]]:
        """Wait for a turn; return the project and some flights of one of its subscriptions."""
        with self._changed:
            if not self._changed.wait_for(self._has_turn, IDLE_SECONDS):
                return "", []
            subscription_id = self._turn()
            if subscription_id is None:  # asked to stop
                return "", []
            waiting = self._waiting.pop(subscription_id)
            project = _project(waiting[0])
            flights = [waiting.popleft() for _ in range(min(len(waiting), TURN_MESSAGES))]
            if waiting:
                self._waiting[subscription_id] = waiting
            self._busy.add(project)
            return project, [flight for flight in flights if not flight.finished]

    def _has_turn(self) -> bool:
        return self._turn() is not None or any(thread.stopping.is_set() for thread in self._threads)

    def _turn(self) -> int | None:
        for subscription_id, waiting in self._waiting.items():
            if _project(waiting[0]) not in self._busy:
                return subscription_id
        return None

    def _transform(self, project: str, flights: Sequence[Flight]) -> list[Flight]:
        """Transform the flights of one subscription. Return those for which there was no time."""
        plan = flights[0].plan
        assert plan is not None
        results = transform_wire_messages(
            project=project,
            functions=plan.functions,
            messages=[flight.task.message for flight in flights],
            seconds=TURN_SECONDS,
        )
        ready = [flight for flight, result in zip(flights, results, strict=False) if self._is_ready(flight, result)]
        if ready:
            self._resume(ready)
        return list(flights[len(results) :])

    def _is_ready(self, flight: Flight, result: Wire | Failed | Filtered) -> bool:
        """Store the result of a transformed flight and return whether it may be pushed now. Settle the others."""
        if result is FILTERED:
            flight.settle_as(Verdict.DROP, FILTER)
            return False
        if isinstance(result, Failed):
            logger.debug("a message transform failed with message %d: %s", flight.message_id, result.why)
            flight.settle_as(Verdict.NACK, Reason.TRANSFORM_FAILED)
            return False
        flight.transformed = result
        return self._admit(flight)


def _project(flight: Flight) -> str:
    plan = flight.plan
    assert plan is not None
    assert plan.settings is not None
    return names.parse_subscription(plan.settings.name)[0]
