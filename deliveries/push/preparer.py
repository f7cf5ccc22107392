"""Prepares pushes: does the work that needs the database, so that neither the engine nor Celery ever waits for it."""

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
from deliveries.push.sending.engine import Engine
from deliveries.push.sending.flight import Flight
from deliveries.rules.outcome import Reason, Verdict
from deliveries.store.outages import OUTAGES
from deliveries.store.payloads import payloads_read
from pushhub.common.background import IDLE_SECONDS, BackgroundThread

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0

Job = Callable[[], None]
Step = Callable[[Sequence[Flight]], None]


class Preparer:
    """A thread that makes plans, reads large payloads and pages backlogs in. It waits out any outage."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = BackgroundThread("push-preparer", self._next_job, at_end=connections.close_all)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._thread.stopping.set()
        self._jobs.put(None)
        self._thread.stop(timeout=5)

    def prepare(self, engine: Engine, flights: Sequence[Flight]) -> None:
        """Make the plans and read the payloads of these flights, then return them to the engine."""
        self.take_on(flights, partial(prepare_now, engine))

    def take_on(self, flights: Sequence[Flight], step: Step) -> None:
        """Call `step` with these flights. Flights with which it fails are nacked, so that none is lost."""
        self._jobs.put(lambda: self._take_step(flights, step))

    def page(self, request: PageRequest) -> None:
        self._jobs.put(lambda: page_in(request))

    def run_soon(self, job: Job) -> None:
        """Run any other job that needs the database. It is repeated until the database is available."""
        self._jobs.put(job)

    def _next_job(self) -> None:
        with suppress(queue.Empty):
            job = self._jobs.get(timeout=IDLE_SECONDS)
            if job is not None:
                self._run(job)

    def _run(self, job: Job) -> None:
        """Run a job, and repeat it while the database or Redis isn't available.

        Any other error ends the job, and the thread logs it: a page that did not arrive is requested again, and so is a
        rebuild.
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

    def _take_step(self, flights: Sequence[Flight], step: Step) -> None:
        """Call `step` with these flights together or, if that fails, with each: one of them may be at fault."""
        try:
            step(flights)
        except OUTAGES:
            raise
        except Exception:
            logger.exception("%d messages could not be prepared", len(flights))
            close_old_connections()
            if len(flights) == 1:
                flights[0].settle_as(Verdict.NACK, Reason.INTERNAL)
            else:
                for flight in flights:
                    self.take_on([flight], step)


def prepare_now(engine: Engine, flights: Sequence[Flight]) -> None:
    """Make the plans and read the payloads of these flights, then push them."""
    now = time.monotonic()
    ids = {flight.task.subscription_id for flight in flights}
    engine.plans.load(subscription_id for subscription_id in ids if engine.plans.get(subscription_id, now=now) is None)
    ready = [flight for flight in flights if _fill(flight)]
    engine.accept(ready)


def _fill(flight: Flight) -> bool:
    """Read the payload of a message that travels by reference; drop a message that the database no longer has."""
    if not flight.task.is_reference:
        return True
    message = payloads_read([flight.message_id]).get(flight.message_id)
    if message is None:
        flight.settle_as(Verdict.DROP, "gone")
        return False
    flight.task = flight.task._replace(message=message)
    return True
