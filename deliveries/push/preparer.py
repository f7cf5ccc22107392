"""Prepares pushes: does the work that needs the database, so that neither the engine nor Celery ever waits for it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from django.db import close_old_connections

from deliveries.push.admission import Admission
from deliveries.push.sending.delivery import PushDelivery
from deliveries.push.sending.engine import Engine
from deliveries.rules.outcome import Reason, Verdict
from deliveries.store import statements
from deliveries.store.messagerows import read_payloads
from pushhub.common.jobs import Job, Jobs, Stopped, repeat_in_outages

logger = logging.getLogger(__name__)

#: Payloads that one statement reads: at most so many, and about so many bytes.
PAYLOADS, PAYLOAD_BYTES = 100, 4_000_000

Step = Callable[[Sequence[PushDelivery]], None]


class Preparer:
    """A thread that makes plans and reads large payloads, in turns. It waits out any outage."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._jobs = Jobs("push-preparer")
        self._unprepared: deque[PushDelivery] = deque()
        #: Subscriptions whose plans end soon.
        self._ending: deque[int] = deque()
        #: Deliveries for whose payloads there is memory.
        self._unread: deque[PushDelivery] = deque()

    def start(self) -> None:
        self._jobs.start()

    def stop(self) -> None:
        self._jobs.stop()

    def prepare(self, deliveries: Sequence[PushDelivery]) -> None:
        """Make the plans of these deliveries and, as soon as there is memory, read their payloads; then push them."""
        self._unprepared.extend(deliveries)
        self.run(self._prepare_waiting)

    def renew(self, subscription_ids: Iterable[int]) -> None:
        """Make the plans of these subscriptions anew. Messages go by the old ones meanwhile."""
        self._ending.extend(subscription_ids)
        self.run(self._renew_plans)

    def read(self, deliveries: Sequence[PushDelivery]) -> None:
        """Read the payloads of these deliveries, for which there is memory, then push them."""
        self._unread.extend(deliveries)
        self.run(self._read_some)

    def run(self, job: Job) -> None:
        """Run a short job that needs the database or Redis."""
        self._jobs.put(job, job, job)

    def _prepare_waiting(self) -> None:
        deliveries = [self._unprepared.popleft() for _ in range(len(self._unprepared))]
        self._take_step(deliveries, self._prepare)

    def _renew_plans(self) -> None:
        """Try once: a message whose plan has ended waits until its plan can be made."""
        self._engine.plans.load([self._ending.popleft() for _ in range(len(self._ending))])

    def _read_some(self) -> None:
        deliveries: list[PushDelivery] = []
        size = 0
        while self._unread and len(deliveries) < PAYLOADS and size < PAYLOAD_BYTES:
            delivery = self._unread.popleft()
            deliveries.append(delivery)
            size += delivery.held_bytes
        if self._unread:
            self.run(self._read_some)
        self._take_step(deliveries, lambda deliveries: self._engine.accept(with_payloads(deliveries)))

    def _prepare(self, deliveries: Sequence[PushDelivery]) -> None:
        now, plans = time.monotonic(), self._engine.plans
        ids = {delivery.task.subscription_id for delivery in deliveries}
        plans.load(id_ for id_ in ids if plans.get(id_, now=now) is None)
        unread = [delivery for delivery in deliveries if delivery.task.is_reference]
        sizes = statements.payload_sizes([delivery.message_id for delivery in unread])
        # A push body holds the data in base64. A message that is gone from the database needs next to no memory.
        needs = [
            (delivery, sizes.get(delivery.message_id, 0) * 4 // 3 + 1) for delivery in unread if not delivery.held_bytes
        ]
        self.read([*(delivery for delivery in unread if delivery.held_bytes), *self._admission.take(needs)])
        self._engine.accept([delivery for delivery in deliveries if not delivery.task.is_reference])

    def _take_step(self, deliveries: Sequence[PushDelivery], step: Step) -> None:
        """Call `step` with these deliveries. If it fails, find those that are at fault: they are nacked."""
        if not deliveries:
            return
        try:
            repeat_in_outages(
                partial(step, deliveries), stopping=self._jobs.stopping, what=f"to prepare {len(deliveries)} pushes"
            )
        except Stopped:
            raise
        except Exception:
            logger.exception("%d messages could not be prepared", len(deliveries))
            close_old_connections()
            if len(deliveries) == 1:
                deliveries[0].settle_as(Verdict.NACK, Reason.INTERNAL)
                return
            middle = len(deliveries) // 2
            self._take_step(deliveries[:middle], step)
            self._take_step(deliveries[middle:], step)


def with_payloads(deliveries: Sequence[PushDelivery]) -> list[PushDelivery]:
    """Return the deliveries with their payloads, without those whose messages the database no longer has: they end."""
    references = [delivery for delivery in deliveries if delivery.task.is_reference]
    payloads = read_payloads({delivery.message_id for delivery in references})
    for delivery in references:
        message = payloads.get(delivery.message_id)
        if message is None:
            delivery.settle_as(Verdict.DROP, "gone")
        else:
            delivery.task = delivery.task._replace(message=message)
    return [delivery for delivery in deliveries if not delivery.finished]
