"""Does for a stock Celery worker what a push worker does beside its pushes: wakes lanes, reads pages, beats.

Celery takes messages from the queue and nothing else, so without the waker a retry on a quiet lane would wait for the
next publish. The waker rings no bell and sleeps on none: those are for push workers, which may serve the region too.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from contextlib import suppress
from typing import Any

import redis
from celery import bootsteps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from deliveries.backlog import reconcile
from deliveries.backlog.codes import STATE_CODES, Place
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane, cell_key, cell_of
from deliveries.push.pager import Pager
from deliveries.rules.taskmessage import QUEUE_PREFIX, DeliverTask
from pushhub.common.background import BackgroundThread

logger = logging.getLogger(__name__)

#: The longest sleep, less than the shortest countdown: a lane that becomes due meanwhile is seen before it is due.
MAX_SLEEP_SECONDS = 0.05
HEARTBEAT_SECONDS = 1.0

#: The waker of this process, or of the process that this one was forked from.
here: Waker | None = None


class Waker:
    """A thread in the main process of a stock worker, and the notes of the deliveries that the worker has."""

    def __init__(self, hostname: str, regions: list[str]) -> None:
        self.name = f"{hostname}:{os.getpid()}:{secrets.token_hex(3)}"
        self._regions = regions
        self._pager = Pager()
        self._beat_at = 0.0
        self._thread = BackgroundThread("stock-waker", self._turn)

    def note(self, task: DeliverTask) -> None:
        """Note that the worker has taken a delivery: the audit sends again what a dead one had (record.lua)."""
        default_backlog().client.sadd(*self._noted(task))

    def end(self, task: DeliverTask) -> None:
        """Note that Celery is about to end a delivery's task."""
        with suppress(redis.RedisError):  # the delivery was settled
            default_backlog().client.srem(*self._noted(task))

    def may_begin(self, task: DeliverTask, *, generation: str) -> bool:
        """Return whether the worker still has the delivery, and the delivery its token.

        It hasn't if the worker was taken for dead, or if kombu brought a copy of what was settled.
        """
        lane = Lane(task.subscription_id, task.region)
        pipe = default_backlog().client.pipeline(transaction=False)
        pipe.sismember(*self._noted(task))
        pipe.hget(lane.places_key, str(task.message_id))
        pipe.hget(lane.state_key, STATE_CODES["generation"])
        is_noted, place, current = pipe.execute()
        return bool(is_noted) and place == Place.OUTSTANDING.encode() and current == generation.encode()

    def _noted(self, task: DeliverTask) -> tuple[str, str]:
        """Return the key of the worker's set, and the member that stands for an attempt."""
        key = cell_key(cell_of(task.subscription_id), f"stock:{self.name}")
        return key, f"{task.message_id}.{task.subscription_id}.{task.region}#{task.attempt}"

    def start(self) -> None:
        with suppress(redis.RedisError):  # the thread tries again
            self._beat()
        self._pager.start()
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop(timeout=10)
        self._pager.stop()
        try:
            default_backlog().leave(self.name)
        except redis.RedisError:
            logger.debug("not signed off: Redis is away")

    def _turn(self) -> None:
        try:
            if time.monotonic() >= self._beat_at:
                self._beat()
            seconds, pages = default_backlog().wake(self._regions[0])
            for page in pages:
                self._pager.page(page)
        except redis.RedisError as error:
            logger.warning("no lane was woken", exc_info=error)
            seconds, self._beat_at = HEARTBEAT_SECONDS, 0.0
        else:
            seconds = min(seconds, MAX_SLEEP_SECONDS)
        self._thread.stopping.wait(seconds)

    def _beat(self) -> None:
        self._beat_at = time.monotonic() + HEARTBEAT_SECONDS
        if default_backlog().beat(self.name, regions=self._regions).was_wiped:
            self._pager.run(reconcile.rebuild)


class WakerStep(bootsteps.StartStopStep):
    """Starts the waker in a worker that consumes a `deliveries.*` queue through another transport than PushHub's."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        queues = worker.app.amqp.queues.consume_from
        self._regions = [queue.removeprefix(QUEUE_PREFIX) for queue in queues if queue.startswith(QUEUE_PREFIX)]
        super().__init__(worker, **kwargs)

    def include_if(self, worker: Any) -> bool:
        return bool(self._regions) and worker.app.connection_for_read().transport_cls != "pushhub"

    def create(self, worker: Any) -> Any:
        global here
        if settings.CELLS > 1:
            raise ImproperlyConfigured(f"PUSHHUB_CELLS={settings.CELLS}: a stock Celery worker knows one cell only")
        if settings.REGION_REDIS:
            raise ImproperlyConfigured("PUSHHUB_REGION_REDIS=on: a stock Celery worker can't hold a region")
        here = Waker(worker.hostname, self._regions)
        return here
