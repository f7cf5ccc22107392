"""Prepares pushes: does the work that needs the database, so that neither the engine nor Celery ever waits for it."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from django.db import close_old_connections

from deliveries.push.admission import Admission
from deliveries.push.sending.engine import Engine
from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import Reason, Verdict
from deliveries.store import statements
from deliveries.store.payloads import read_payloads
from pushhub.common.jobs import Job, Jobs, Stopped, persistently

logger = logging.getLogger(__name__)

#: Payloads that one statement reads: at most so many, and about so many bytes.
PAYLOADS, PAYLOAD_BYTES = 100, 4_000_000

Step = Callable[[Sequence[Flight]], None]


class Preparer:
    """A thread that makes plans and reads large payloads, in turns. It waits out any outage."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission
        self._jobs = Jobs("push-preparer")
        self._unprepared: deque[Flight] = deque()
        #: Subscriptions whose plans end soon.
        self._ending: deque[int] = deque()
        #: Flights for whose payloads there is memory.
        self._unread: deque[Flight] = deque()

    def start(self) -> None:
        self._jobs.start()

    def stop(self) -> None:
        self._jobs.stop()

    def prepare(self, flights: Sequence[Flight]) -> None:
        """Make the plans of these flights and, as soon as there is memory, read their payloads; then push them."""
        self._unprepared.extend(flights)
        self.run(self._prepare_waiting)

    def renew(self, subscription_ids: Iterable[int]) -> None:
        """Make the plans of these subscriptions anew. Messages go by the old ones meanwhile."""
        self._ending.extend(subscription_ids)
        self.run(self._renew_plans)

    def read(self, flights: Sequence[Flight]) -> None:
        """Read the payloads of these flights, for which there is memory, then push them."""
        self._unread.extend(flights)
        self.run(self._read_some)

    def run(self, job: Job) -> None:
        """Run a short job that needs the database or Redis."""
        self._jobs.put(job, job, job)

    def _prepare_waiting(self) -> None:
        flights = [self._unprepared.popleft() for _ in range(len(self._unprepared))]
        self._take_step(flights, self._prepare)

    def _renew_plans(self) -> None:
        """Try once: a message whose plan has ended waits until its plan can be made."""
        self._engine.plans.load([self._ending.popleft() for _ in range(len(self._ending))])

    def _read_some(self) -> None:
        flights: list[Flight] = []
        size = 0
        while self._unread and len(flights) < PAYLOADS and size < PAYLOAD_BYTES:
            flight = self._unread.popleft()
            flights.append(flight)
            size += flight.held_bytes
        if self._unread:
            self.run(self._read_some)
        self._take_step(flights, lambda flights: self._engine.accept(with_payloads(flights)))

    def _prepare(self, flights: Sequence[Flight]) -> None:
        make_plans(self._engine, flights)
        unread = [flight for flight in flights if flight.task.is_reference]
        sizes = statements.payload_sizes([flight.message_id for flight in unread])
        # A push body holds the data in base64. A message that is gone from the database needs next to no memory.
        needs = [(flight, sizes.get(flight.message_id, 0) * 4 // 3 + 1) for flight in unread if not flight.held_bytes]
        self.read([*(flight for flight in unread if flight.held_bytes), *self._admission.take(needs)])
        self._engine.accept([flight for flight in flights if not flight.task.is_reference])

    def _take_step(self, flights: Sequence[Flight], step: Step) -> None:
        """Call `step` with these flights. If it fails, find those that are at fault: they are nacked."""
        if not flights:
            return
        try:
            persistently(partial(step, flights), stopping=self._jobs.stopping, what=f"to prepare {len(flights)} pushes")
        except Stopped:
            raise
        except Exception:
            logger.exception("%d messages could not be prepared", len(flights))
            close_old_connections()
            if len(flights) == 1:
                flights[0].settle_as(Verdict.NACK, Reason.INTERNAL)
                return
            middle = len(flights) // 2
            self._take_step(flights[:middle], step)
            self._take_step(flights[middle:], step)


def make_plans(engine: Engine, flights: Sequence[Flight]) -> None:
    """Make the plans that these flights lack."""
    now = time.monotonic()
    ids = {flight.task.subscription_id for flight in flights}
    engine.plans.load(subscription_id for subscription_id in ids if engine.plans.get(subscription_id, now=now) is None)


def with_payloads(flights: Sequence[Flight]) -> list[Flight]:
    """Return the flights with their payloads, without those whose messages the database no longer has: they end."""
    references = [flight for flight in flights if flight.task.is_reference]
    payloads = read_payloads({flight.message_id for flight in references})
    for flight in references:
        message = payloads.get(flight.message_id)
        if message is None:
            flight.settle_as(Verdict.DROP, "gone")
        else:
            flight.task = flight.task._replace(message=message)
    return [flight for flight in flights if not flight.finished]
