"""The steward: does what needs the database before a push can go out, so that neither loop ever waits for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

import redis
from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from deliveries.backlog.backlog import PageRequest
from deliveries.backlog.paging import page_in
from deliveries.models import Message
from deliveries.push.engine import Engine
from deliveries.push.flight import Flight
from deliveries.rules.payload import attributes_parse, wire_message

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 5.0
OUTAGES = (DatabaseError, InterfaceError, redis.RedisError)


class Steward:
    """A thread that makes plans, reads large payloads and pages backlogs in. An outage makes it wait, never end."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="push-steward", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._jobs.put(None)
        self._thread.join(timeout=5)

    def prepare(self, engine: Engine, flights: list[Flight]) -> None:
        """Make what these lack, then give them back to the engine."""
        self._jobs.put(lambda: prepare_now(engine, flights))

    def page(self, request: PageRequest) -> None:
        self._jobs.put(lambda: page_in(request))

    def run_soon(self, job: Callable[[], None]) -> None:
        """Any other job that needs the database, retried until it succeeds."""
        self._jobs.put(job)

    def _run(self) -> None:
        while not self._stopping.is_set():
            job = self._jobs.get()
            if job is not None:
                self._do(job)
        connection.close()

    def _do(self, job: Callable[[], None]) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping.is_set():
            try:
                job()
                return
            except OUTAGES as error:
                logger.warning("waiting %.2f s for the database or Redis: %s", pause, type(error).__name__)
                close_old_connections()
            except Exception:
                logger.exception("a job of the steward failed and is given up")
                return
            self._stopping.wait(pause)
            pause = min(pause * 2, LAST_PAUSE_SECONDS)


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
