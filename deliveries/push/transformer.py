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

from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import FILTER, Reason, Verdict
from deliveries.transforming import Wire, begin_transforms, transformed
from pushhub.common import names
from pushhub.common.errors import ResourceExhausted
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Filtered, Result

logger = logging.getLogger(__name__)

#: The most messages of a subscription's turn, and its time limit.
TURN_MESSAGES = 250
TURN_SECONDS = 0.25


class Transformer:
    """Transforms deliveries. The results come in the threads of the sandboxes."""

    def __init__(
        self,
        *,
        functions_of: Callable[[PushDelivery], Sequence[Function]],
        resume: Callable[[Sequence[PushDelivery]], None],
        admit: Callable[[PushDelivery], bool],
    ) -> None:
        """`functions_of` returns the functions that a delivery's subscription has now, `resume` gets the transformed
        deliveries, and `admit` returns whether there is memory for a new payload.
        """
        self._functions_of = functions_of
        self._resume = resume
        self._admit = admit
        self._lock = threading.Lock()
        #: By project, those whose functions are running: deliveries by subscription. The subscription whose last turn
        #: is the longest ago comes first.
        self._waiting: dict[str, OrderedDict[int, deque[PushDelivery]]] = {}
        self._is_stopped = False

    def take_on(self, deliveries: Sequence[PushDelivery]) -> None:
        """Transform these deliveries, which have their plans. May be called from any thread."""
        begun = []
        with self._lock:
            for delivery in deliveries:
                project = _project(delivery)
                if project not in self._waiting:
                    self._waiting[project] = OrderedDict()
                    begun.append(project)
                self._waiting[project].setdefault(delivery.lane.subscription_id, deque()).append(delivery)
        for project in begun:
            self._take_turn(project)

    def stop(self) -> None:
        """Begin no further turns."""
        self._is_stopped = True

    def _take_turn(self, project: str) -> None:
        """Begin a turn of the project, if any of its deliveries wait."""
        while deliveries := self._next(project):
            try:
                functions = self._functions_of(deliveries[0])
                if not functions:  # they were removed while these waited
                    self._resume(deliveries)
                    continue
                messages = [delivery.task.message for delivery in deliveries]
                turn = begin_transforms(project=project, functions=functions, messages=messages, seconds=TURN_SECONDS)
            except Exception:
                _fail(deliveries)
                continue
            turn.add_done_callback(partial(self._end_turn, project, deliveries, functions))
            return

    def _next(self, project: str) -> list[PushDelivery]:
        """Return the deliveries of the project's next turn, which are of one subscription; none if none wait."""
        with self._lock:
            by_subscription = self._waiting[project]
            while by_subscription and not self._is_stopped:
                subscription_id, waiting = by_subscription.popitem(last=False)
                deliveries = [waiting.popleft() for _ in range(min(len(waiting), TURN_MESSAGES))]
                if waiting:
                    by_subscription[subscription_id] = waiting
                deliveries = [delivery for delivery in deliveries if not delivery.finished]
                if deliveries:
                    return deliveries
            del self._waiting[project]
            return []

    def _end_turn(
        self,
        project: str,
        deliveries: Sequence[PushDelivery],
        functions: Sequence[Function],
        turn: Future[list[Result]],
    ) -> None:
        """Go on with what was transformed. What there was no time for waits for the next turn."""
        if turn.cancelled() or self._is_stopped:
            return
        left = deliveries
        try:
            left = self._transformed(deliveries, turn.result(), functions)
        except ResourceExhausted:
            logger.debug("%d messages wait: other projects' functions leave no time", len(deliveries))
        except Exception:
            _fail(deliveries)
            left = []
        if left:
            with self._lock:
                waiting = self._waiting[project].setdefault(left[0].lane.subscription_id, deque())
                waiting.extendleft(reversed(left))
        self._take_turn(project)

    def _transformed(
        self, deliveries: Sequence[PushDelivery], results: Sequence[Result], functions: Sequence[Function]
    ) -> Sequence[PushDelivery]:
        """Push or settle the first deliveries, which have results, and return the others."""
        messages = transformed([delivery.task.message for delivery in deliveries], results)
        ready = [
            delivery
            for delivery, message in zip(deliveries, messages, strict=False)
            if self._is_ready(delivery, message, functions)
        ]
        if ready:
            self._resume(ready)
        return deliveries[len(results) :]

    def _is_ready(
        self, delivery: PushDelivery, result: Wire | Failed | Filtered, functions: Sequence[Function]
    ) -> bool:
        """Store the result of a transformed delivery and return whether it may be pushed now. Settle the others."""
        if result is FILTERED:
            delivery.settle_as(Verdict.DROP, FILTER)
            return False
        if isinstance(result, Failed):
            logger.debug("a message transform failed with message %d: %s", delivery.message_id, result.why)
            delivery.settle_as(Verdict.NACK, Reason.TRANSFORM_FAILED)
            return False
        delivery.transformed, delivery.transformed_by = result, functions
        return self._admit(delivery)


def _fail(deliveries: Sequence[PushDelivery]) -> None:
    """Nack these deliveries after an error that was caught."""
    logger.exception("%d messages could not be transformed", len(deliveries))
    for delivery in deliveries:
        delivery.settle_as(Verdict.NACK, Reason.INTERNAL)


def _project(delivery: PushDelivery) -> str:
    plan = delivery.plan
    assert plan is not None
    assert plan.settings is not None
    return names.parse_subscription(plan.settings.name)[0]
