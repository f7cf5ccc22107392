"""Has the message transforms of push subscriptions applied: a function may take half a second.

The projects take turns in the threads of the sandboxes, and a project's subscriptions within its turns. So slow
functions delay the messages of their own project.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import FILTER, Reason, Verdict
from deliveries.transforming import Wire, begin_transforms, transformed
from pushhub.common import names
from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms.results import FILTERED, Failed, Filtered, Result

logger = logging.getLogger(__name__)

#: The most messages of a subscription's turn, and its time limit.
TURN_MESSAGES = 250
TURN_SECONDS = 0.25


class Transformer:
    """Transforms flights. The results come in the threads of the sandboxes."""

    def __init__(self, *, resume: Callable[[Sequence[Flight]], None], admit: Callable[[Flight], bool]) -> None:
        """`resume` gets the transformed flights. `admit` returns whether there is memory for a flight's new payload."""
        self._resume = resume
        self._admit = admit
        self._lock = threading.Lock()
        #: By project, those whose functions are running: flights by subscription. The subscription whose last turn is
        #: the longest ago comes first.
        self._waiting: dict[str, OrderedDict[int, deque[Flight]]] = {}
        self._is_stopped = False

    def take_on(self, flights: Sequence[Flight]) -> None:
        """Transform these flights, which have their plans. May be called from any thread."""
        begun = []
        with self._lock:
            for flight in flights:
                project = _project(flight)
                if project not in self._waiting:
                    self._waiting[project] = OrderedDict()
                    begun.append(project)
                self._waiting[project].setdefault(flight.lane.subscription_id, deque()).append(flight)
        for project in begun:
            self._take_turn(project)

    def stop(self) -> None:
        """Begin no further turns."""
        self._is_stopped = True

    def _take_turn(self, project: str) -> None:
        """Begin a turn of the project, if any of its flights wait."""
        flights = self._next(project)
        if not flights:
            return
        plan = flights[0].plan
        assert plan is not None
        messages = [flight.task.message for flight in flights]
        turn = begin_transforms(project=project, functions=plan.functions, messages=messages, seconds=TURN_SECONDS)
        turn.add_done_callback(partial(self._end_turn, project, flights))

    def _next(self, project: str) -> list[Flight]:
        """Return the flights of the project's next turn, which are of one subscription; none if none wait."""
        with self._lock:
            by_subscription = self._waiting[project]
            while by_subscription and not self._is_stopped:
                subscription_id, waiting = by_subscription.popitem(last=False)
                flights = [waiting.popleft() for _ in range(min(len(waiting), TURN_MESSAGES))]
                if waiting:
                    by_subscription[subscription_id] = waiting
                flights = [flight for flight in flights if not flight.finished]
                if flights:
                    return flights
            del self._waiting[project]
            return []

    def _end_turn(self, project: str, flights: Sequence[Flight], turn: Future[list[Result]]) -> None:
        """Go on with what was transformed. What there was no time for waits for the next turn."""
        if turn.cancelled() or self._is_stopped:
            return
        left = flights
        try:
            left = self._transformed(flights, turn.result())
        except ResourceExhausted:
            logger.debug("%d messages wait: other projects' functions leave no time", len(flights))
        except Exception:
            logger.exception("%d messages could not be transformed", len(flights))
            for flight in flights:
                flight.settle_as(Verdict.NACK, Reason.INTERNAL)
            left = []
        if left:
            with self._lock:
                waiting = self._waiting[project].setdefault(left[0].lane.subscription_id, deque())
                waiting.extendleft(reversed(left))
        self._take_turn(project)

    def _transformed(self, flights: Sequence[Flight], results: Sequence[Result]) -> Sequence[Flight]:
        """Push or settle the first flights, which have results, and return the others."""
        messages = transformed([flight.task.message for flight in flights], results)
        ready = [flight for flight, message in zip(flights, messages, strict=False) if self._is_ready(flight, message)]
        if ready:
            self._resume(ready)
        return flights[len(results) :]

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
