"""Celery's beat, which sends the timed tasks, with a lease: any number may run, and one of them sends.

Another one takes over some seconds after that one was stopped, killed or frozen. For a moment two may send; the tasks'
own leases (leases.py) drop what comes twice.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from celery import Celery, bootsteps
from celery.beat import ScheduleEntry, Scheduler, SchedulingError
from celery.schedules import schedule
from celery.worker import components
from redis.exceptions import LockError

from deliveries.backlog import timed
from deliveries.backlog.connection import redis_client
from deliveries.backlog.records import PREFIX
from pushhub import leases
from pushhub.common.background import BackgroundThread
from pushhub.machines import MACHINES, OF_A_MACHINE

logger = logging.getLogger(__name__)

#: How long after its last sign of life another beat replaces one.
LEASE_SECONDS = 5.0
#: The longest time between two looks at the lease.
LOOK_SECONDS = 1.0
#: When each entry was last sent, in seconds since 1970, for the beat that takes over.
SENT_KEY = f"{PREFIX}schedule"
#: Tasks that come at least so often are watched (timed.py). A rarer one that fails once would alarm until the next.
WATCHED_SECONDS = 60


class LeasedScheduler(Scheduler):
    """A schedule that sends what is due while it has the lease."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"max_interval": LOOK_SECONDS})
        self._lease = leases.lease("beat", seconds=LEASE_SECONDS)
        self._is_holder = False
        #: When the lease was last renewed (time.monotonic).
        self._renewed_at = 0.0

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send at most one task, and return after how many seconds to call again."""
        try:
            return float(super().tick(*args, **kwargs)) if self._hold() else LOOK_SECONDS
        except redis.RedisError as error:
            logger.warning("no timed task is sent", exc_info=error)
            # Nothing can be sent. An entry that was being sent is no longer in the heap, which is made anew.
            self._heap = None
            return LOOK_SECONDS

    def apply_async(self, entry: ScheduleEntry, *args: Any, **kwargs: Any) -> Any:
        """Send a task. If that fails, connect anew: kombu's producer doesn't recover from every outage of Redis."""
        try:
            return super().apply_async(entry, *args, **kwargs)
        except SchedulingError as error:
            self.__dict__.pop("producer", None)
            connection = self.__dict__.pop("connection", None)
            if connection is not None:
                with suppress(Exception):
                    connection.release()
            # Celery doesn't name the cause, by which the log knows an outage.
            raise error from error.__context__

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        task = str(entry.task)
        if _watched_every(entry) and task not in OF_A_MACHINE:
            timed.note_sent(redis_client(), timed.task_name(task, entry.args or ()))
        super().apply_entry(entry, producer=producer)
        redis_client().hset(SENT_KEY, str(entry.name), str(time.time()))

    def close(self) -> None:
        super().close()
        if self._is_holder:
            with suppress(LockError, redis.RedisError):
                self._lease.release()

    def _hold(self) -> bool:
        """Renew the lease once a second, or take it if it is free; return whether this process has it."""
        now = time.monotonic()
        if self._is_holder and now - self._renewed_at < LOOK_SECONDS:
            return True
        if self._is_holder:
            try:
                self._lease.reacquire()
            except LockError:
                self._is_holder = False
        if not self._is_holder and leases.take(self._lease):
            self._go_on()
            self._is_holder = True
        self._renewed_at = now
        return self._is_holder

    def _go_on(self) -> None:
        """Go on where the last beat stopped. What Redis does not know is due: the rare after their time, all else now.

        So the first audit, which shows that maintenance is done, comes with the start, and after a loss of Redis' data.
        """
        timed.forget_sent(redis_client())
        sent = redis_client().hgetall(SENT_KEY)
        for name, entry in self.schedule.items():
            if name.encode() in sent:
                sent_at = datetime.fromtimestamp(float(sent[name.encode()]), UTC)
                # The clock of the last beat may have been ahead.
                entry.last_run_at = min(sent_at, entry.default_now())
            elif every := _watched_every(entry):
                entry.last_run_at = entry.default_now() - every
        self._heap = None


def _watched_every(entry: ScheduleEntry) -> timedelta | None:
    """Return how often a task comes that is watched, and None for others."""
    every = entry.schedule
    return (
        timedelta(seconds=every.seconds) if isinstance(every, schedule) and every.seconds <= WATCHED_SECONDS else None
    )


def beat_thread(app: Celery) -> BackgroundThread:
    """Return beat in a thread of a worker. A process, which Celery's `--beat` starts otherwise, takes 33 MB."""
    scheduler = LeasedScheduler(app)

    def turn() -> None:
        thread.stopping.wait(scheduler.tick())

    thread = BackgroundThread("beat", turn, at_end=scheduler.close)
    return thread


class MachinesStep(bootsteps.Step):
    """Lets a maintenance worker consume the tasks about the files of its machine too."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        queues = worker.app.amqp.queues
        if worker.app.conf.task_default_queue in queues.consume_from:
            queues.select_add(MACHINES)
        super().__init__(worker, **kwargs)


def install(app: Celery) -> None:
    """Let `--beat` start a thread, and maintenance workers consume MACHINES."""
    step: Any = components.Beat
    step.create = lambda _step, worker: beat_thread(worker.app)
    app.steps["worker"].add(MachinesStep)
