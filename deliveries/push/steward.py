"""The steward: does what needs the database before a push can go out, so that neither loop ever waits for it."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from django.db import close_old_connections, connections

from deliveries.backlog.backlog import PageRequest
from deliveries.backlog.paging import page_in
from deliveries.models import Message
from deliveries.push.engine import Engine
from deliveries.push.flight import Flight
from deliveries.rules.outcome import Reason
from deliveries.rules.payload import attributes_parse, wire_message
from deliveries.store.outages import OUTAGES
from pushhub.common.background import IDLE_SECONDS, BackgroundThread

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0

Job = Callable[[], None]
Step = Callable[[Sequence[Flight]], None]


class Steward:
    """A thread that makes plans, reads large payloads and pages backlogs in. An outage makes it wait, never end."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = BackgroundThread("push-steward", self._next, at_end=connections.close_all)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stopping.set()
        self._jobs.put(None)
        self._thread.stop(timeout=5)

    def prepare(self, engine: Engine, flights: Sequence[Flight]) -> None:
        """Make what these lack, then give them back to the engine."""
        self.take_on(flights, partial(prepare_now, engine))

    def take_on(self, flights: Sequence[Flight], step: Step) -> None:
        """Have `step` called with these. Flights with which it fails are nacked, so that none is forgotten."""
        self._jobs.put(lambda: self._take(flights, step))

    def page(self, request: PageRequest) -> None:
        self._jobs.put(lambda: page_in(request))

    def run_soon(self, job: Job) -> None:
        """Any other job that needs the database, retried while that is away."""
        self._jobs.put(job)

    def _next(self) -> None:
        with suppress(queue.Empty):
            job = self._jobs.get(timeout=IDLE_SECONDS)
            if job is not None:
                self._do(job)

    def _do(self, job: Job) -> None:
        """Do it, however long the database or Redis is away. Any other error is the job's end, and the thread's to
        report: a page that did not come is asked for again, and so is a rebuild.
        """
        pause = FIRST_PAUSE_SECONDS
        while not self._thread.stopping.is_set():
            try:
                return job()
            except OUTAGES as error:
                logger.warning("waiting %.2f s for the database or Redis: %s", pause, type(error).__name__)
                close_old_connections()
            self._thread.beat()
            self._thread.stopping.wait(pause)
            pause = min(pause * 2, LAST_PAUSE_SECONDS)
        return None

    def _take(self, flights: Sequence[Flight], step: Step) -> None:
        """Take the step for these together. Where that fails it is taken for each, as one of them may be at fault."""
        try:
            step(flights)
        except OUTAGES:
            raise
        except Exception:
            logger.exception("%d messages could not be prepared", len(flights))
            close_old_connections()
            if len(flights) == 1:
                flights[0].settle_as("n", Reason.INTERNAL)
            else:
                for flight in flights:
                    self.take_on([flight], step)


def prepare_now(engine: Engine, flights: Sequence[Flight]) -> None:
    """Make the plans and read the payloads of these, then push them."""
    now = time.monotonic()
    wanted = {flight.task.subscription_id for flight in flights}
    engine.plans.load(wanted_id for wanted_id in wanted if engine.plans.get(wanted_id, now=now) is None)
    ready = [flight for flight in flights if _fill(flight)]
    engine.accept(ready)


def _fill(flight: Flight) -> bool:
    """Read a payload that was left in the database; a message that is gone from there is owed to nobody."""
    if not flight.task.is_reference:
        return True
    message = Message.objects.filter(pk=flight.message_id).first()
    if message is None:
        flight.settle_as("x", "gone")
        return False
    flight.task = flight.task._replace(
        message=wire_message(
            message.pk, bytes(message.data), attributes_parse(message.attributes), message.ordering_key
        ),
    )
    return True
