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
from deliveries.backlog.connection import beside_an_outage
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Health
from deliveries.backlog.regions import regions_to_adopt
from deliveries.store import regionholds
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
        self._wiped: set[int] = set()
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
            leases = {cell: lease.name for cell, lease in enumerate(self._worker.leases)}
            default_backlog().leave(self._worker.name, leases=leases)
        except redis.RedisError:
            logger.debug("not signed off: Redis is away")

    def renew(self) -> dict[int, Health]:
        """Renew the heartbeat and the worker's leases; get others for those that are lost. Raises redis.RedisError."""
        with self._lock:
            regions = self._worker.regions_served()
            renewed = [lease for lease in self._worker.leases if not lease.is_new]
            healths = self._renew(regions)
            lost = [cell for cell, health in healths.items() if not health.holds_lease]
            for cell in lost:
                self._worker.lose_lease(cell=cell)
            if lost:
                healths = self._renew(regions)
            for cell, lease in enumerate(self._worker.leases):
                if lease not in renewed:
                    for region in regions:  # the worker got no messages meanwhile
                        self._backlog.ring(region, cell=cell)
            return healths

    def _renew(self, regions: set[str]) -> dict[int, Health]:
        leases, asked_at = list(self._worker.leases), time.monotonic()
        healths = self._backlog.beats(
            self._worker.name,
            oldest_job_seconds=oldest_job_seconds(),
            leases=leases,
            regions=regions,
        )
        for cell, health in healths.items():
            if health.holds_lease:
                leases[cell].renewed(asked_at)
        return healths

    def _beat(self) -> None:
        try:
            healths = self.renew()
            health = Health.of_all(healths.values())
            if 0 in healths and regionholds.is_alone():
                self._worker.adopt(regions_to_adopt(health.silent_regions))
            if health.put_back:
                logger.warning("took over %d messages of a worker that died", health.put_back)
            for cell, lost in self._worker.requests.lost().items():
                with beside_an_outage():
                    count = self._backlog.put_back(self._worker.name, lost, cell=cell)
                    if count:
                        logger.warning("put back %d messages of a fetch whose reply was lost", count)
            if len(healths) < len(self._worker.leases):
                self._was_away = True
            elif self._was_away and not health.was_wiped:
                self._worker.pager.run(_audit)
                self._was_away = False
            if health.was_wiped:
                self._wiped |= {cell for cell, health in healths.items() if health.was_wiped}
                self._worker.pager.run(self._rebuild)
            self._worker.stages.endpoints.report_recovered()
        except redis.RedisError as error:
            self._was_away = True
            logger.warning("no heartbeat", exc_info=error)
        self._thread.stopping.wait(HEARTBEAT_SECONDS)

    def _rebuild(self) -> None:
        """Rebuild the cells that were wiped. If one is away again, a later heartbeat finds it wiped again."""
        wiped = self._wiped.copy()
        with beside_an_outage():
            reconcile.rebuild(wiped)
        self._wiped -= wiped


def _audit() -> None:
    with beside_an_outage():
        reconcile.audit()
        regions.audit_regions()
