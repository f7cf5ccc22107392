"""Jobs in threads of their own. Owners take turns: an owner waits for at most one job of each other owner."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

from django.db import close_old_connections, connections

from pushhub.common import background
from pushhub.common.background import FIRST_PAUSE_SECONDS, IDLE_SECONDS, LAST_PAUSE_SECONDS, BackgroundThread
from pushhub.common.outages import outage_or_raise

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Job = Callable[[], object]


class Stopped(Exception):
    """The thread was asked to stop while the database or Redis was away."""


class _Waiting(NamedTuple):
    job: Job
    #: When a job was first put under this key (time.monotonic).
    since: float


class Jobs:
    """Runs jobs that need the database or Redis. Each is repeated while one of these is away.

    Any other exception ends the job, and the log has it. One owner's jobs run one at a time, in order.
    """

    def __init__(self, name: str, *, threads: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        #: Jobs by owner and key. The owner whose last turn is the longest ago comes first.
        self._waiting: dict[Hashable, dict[Hashable, _Waiting]] = {}
        #: The owners whose jobs are running, and since when the jobs were waiting.
        self._running: dict[Hashable, float] = {}
        self.stopping = threading.Event()
        names = [name] if threads == 1 else [f"{name}-{number}" for number in range(threads)]
        self._threads = [
            BackgroundThread(name, self._turn, oldest_job=self.oldest_seconds, at_end=connections.close_all)
            for name in names
        ]

    def start(self) -> None:
        """Start the threads, if they don't run yet."""
        for thread in self._threads:
            thread.start_once()

    def stop(self) -> None:
        """End the threads after the jobs that are running; those that wait are dropped."""
        self.stopping.set()
        with self._changed:
            for thread in self._threads:
                thread.stopping.set()
            self._changed.notify_all()
        for thread in self._threads:
            thread.stop()

    def put(self, owner: Hashable, key: Hashable, job: Job) -> None:
        """Have a job run when it is the owner's turn. It takes the place of the job that waits under the same key."""
        with self._changed:
            jobs = self._waiting.setdefault(owner, {})
            since = jobs[key].since if key in jobs else self._clock()
            jobs[key] = _Waiting(job, since)
            self._changed.notify()

    def take_more(self, owner: Hashable, *, fits: Callable[[Job], bool]) -> list[Job]:
        """Take the owner's next jobs, as long as they fit, for the job of the owner that runs now."""
        taken: list[Job] = []
        with self._changed:
            jobs = self._waiting.get(owner, {})
            while jobs and fits(next(iter(jobs.values())).job):
                taken.append(jobs.pop(next(iter(jobs))).job)
            if not jobs:
                self._waiting.pop(owner, None)
        return taken

    def oldest_seconds(self) -> float:
        """Return the age of the oldest job that waits or runs; 0 if there is none."""
        with self._changed:
            firsts = [next(iter(jobs.values())).since for jobs in self._waiting.values()]
            times = [*firsts, *self._running.values()]
        return self._clock() - min(times) if times else 0.0

    def _turn(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._next_owner() is not None or self.stopping.is_set(), IDLE_SECONDS)
            owner = self._next_owner()
            if owner is None or self.stopping.is_set():
                return
            jobs = self._waiting[owner]
            waiting = jobs.pop(next(iter(jobs)))
            if not jobs:
                del self._waiting[owner]
            self._running[owner] = waiting.since
        try:
            repeat_in_outages(waiting.job, stopping=self.stopping, what="a job")
        except Stopped:
            return
        finally:
            with self._changed:
                del self._running[owner]
                if owner in self._waiting:
                    self._waiting[owner] = self._waiting.pop(owner)
                self._changed.notify()

    def _next_owner(self) -> Hashable | None:
        return next((owner for owner in self._waiting if owner not in self._running), None)


#: An event that nobody sets.
NEVER = threading.Event()


def repeat_in_outages(call: Callable[[], Result], *, stopping: threading.Event = NEVER, what: str) -> Result:
    """Repeat a call while the database or Redis is away. Raises Stopped if `stopping` is set meanwhile.

    `what` names the call in the log.
    """
    pause = FIRST_PAUSE_SECONDS
    try:
        while True:
            try:
                return call()
            except Exception as error:
                outage_or_raise(error)
                logger.warning("trying %s again in %.2f s", what, pause, exc_info=error)
                close_old_connections()
            background.note_outage()
            if stopping.wait(pause):
                raise Stopped
            pause = min(pause * 2, LAST_PAUSE_SECONDS)
    finally:
        background.end_outage()
