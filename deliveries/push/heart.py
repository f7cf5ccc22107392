"""The heartbeat of a push worker, by which it and the others learn what has become of them."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import redis

from deliveries.backlog import reconcile, regions
from deliveries.backlog.backlog import Backlog
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Health
from deliveries.backlog.regions import regions_to_adopt
from pushhub.common.background import BackgroundThread, oldest_job_seconds

if TYPE_CHECKING:
    from deliveries.push.worker import PushWorker

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0


class Heart:
    """Renews this worker's heartbeat, takes over messages and regions of dead workers, and notices a wiped Redis."""

    def __init__(self, worker: PushWorker) -> None:
        self._worker = worker
        self._backlog = Backlog()
        self._was_away = False
        self._lock = threading.Lock()
        self._thread = BackgroundThread("push-heart", self._beat)

    def start(self) -> None:
        with suppress(redis.RedisError):  # the thread tries again
            self.renew()
        self._thread.start()

    def stop(self) -> None:
        """Stop the heartbeat; after a while the other workers take over what this worker still holds."""
        self._thread.stop(timeout=10)
        try:
            default_backlog().leave(self._worker.name, lease=self._worker.lease.name)
        except redis.RedisError:
            logger.debug("not signed off: Redis is away")

    def renew(self) -> Health:
        """Renew the heartbeat and the worker's lease; if that is lost, get another one. Raises redis.RedisError."""
        with self._lock:
            regions = self._worker.regions_served()
            lease = self._worker.lease
            was_new = lease.is_new
            health = self._renew(regions)
            if not health.holds_lease:
                self._worker.lose_lease()
                health = self._renew(regions)
            if was_new or self._worker.lease is not lease:
                for region in regions:  # the worker got no messages meanwhile
                    self._backlog.ring(region)
            return health

    def _renew(self, regions: set[str]) -> Health:
        lease, asked_at = self._worker.lease, time.monotonic()
        health = self._backlog.beat(
            self._worker.name,
            oldest_job_seconds=oldest_job_seconds(),
            lease=lease.name,
            is_new_lease=lease.is_new,
            regions=regions,
        )
        if health.holds_lease:
            lease.renewed(asked_at)
        return health

    def _beat(self) -> None:
        try:
            health = self.renew()
            self._worker.adopt(regions_to_adopt(health.silent_regions))
            if health.put_back:
                logger.warning("took over %d messages of a worker that died", health.put_back)
            if lost := self._worker.batches_lost():
                count = self._backlog.put_back(self._worker.name, lost)
                if count:
                    logger.warning("put back %d messages of a fetch whose reply was lost", count)
            if health.was_wiped:
                self._worker.pager.run(_rebuild)
            elif self._was_away:
                self._worker.pager.run(_audit)
            self._was_away = False
            self._worker.stages.endpoints.report_recovered()
        except redis.RedisError as error:
            self._was_away = True
            logger.warning("no heartbeat", exc_info=error)
        self._thread.stopping.wait(HEARTBEAT_SECONDS)


def _rebuild() -> None:
    reconcile.rebuild()


def _audit() -> None:
    reconcile.audit()
    regions.audit_regions()
