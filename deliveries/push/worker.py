"""The push worker, which extends a Celery worker that consumes a `deliveries.*` queue through PushHub's transport.

Celery's own thread fetches, and the heart beats beside it. What becomes of the messages is in stages.py. Each thread
waits out any outage of Redis or the database by itself.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import logging
import os
import secrets
import time
from collections.abc import Container, Mapping, Sequence
from typing import Any

import redis
from django.conf import settings

from deliveries.backlog.connection import beside_an_outage
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import PageRequest, Take, Taken, all_cells, bell_key, work_key
from deliveries.backlog.workerverbs import CHANGES_KEPT, LOST_LEASE, Fetched, WorkerLease
from deliveries.push.heart import Heart
from deliveries.push.pager import Pager
from deliveries.push.regionkeeper import RegionKeeper
from deliveries.push.rejected import reject
from deliveries.push.sending.delivery import Batch
from deliveries.push.stages import Arrival, Stages
from deliveries.push.transport import Transport
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import TASK_NAME, body_of, parse_any, parse_own, task_id_of
from deliveries.store import regionholds
from deliveries.telemetry.journal.journal import journal
from pushhub.common.servers import raise_open_files

logger = logging.getLogger(__name__)

#: Messages per fetch: many enough to make its cost small, few enough for workers to share a queue.
FETCH_SIZE = 300
#: The option of mallopt for the size from which a block gets its own mapping, and that size.
M_MMAP_THRESHOLD = -3
OWN_MEMORY_BYTES = 256 * 1024

#: A batch that was requested so long ago and has not arrived is lost with its reply. Redis may still run the request
#: later, so the worker looks for the batch until it is this much older.
LOST_SECONDS = 15.0
FORGOTTEN_SECONDS = 600.0


class BatchRequests:
    """The batches that the worker has requested, until they arrive. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        #: The times of the requests (time.monotonic), the worker's lease at that time, and its cell.
        self._requested: dict[str, tuple[float, WorkerLease, int]] = {}

    def add(self, lease: WorkerLease, *, cell: int) -> str:
        """Return the name of a batch that is requested now from a cell."""
        batch = self.unused()
        self._requested[batch] = time.monotonic(), lease, cell
        return batch

    def unused(self) -> str:
        """Return a name for a batch that will not come."""
        return str(next(self._numbers))

    def arrived(self, batch: str, *, lease: WorkerLease) -> WorkerLease:
        """Return the lease with which a batch was requested, or `lease` for one that has been forgotten."""
        return self._requested.pop(batch, (0.0, lease, 0))[1]

    def lost(self) -> dict[int, list[str]]:
        """Return the batches of each cell whose replies must have been lost, for instance with a connection to Redis.

        Their messages go to others. A reply that comes all the same is one of a lost lease.
        """
        now = time.monotonic()
        lost: dict[int, list[str]] = {}
        for batch, (at, _, cell) in self._requested.copy().items():
            if now - at > FORGOTTEN_SECONDS:
                self._requested.pop(batch, None)
            elif now - at > LOST_SECONDS and batch in self._requested:
                self._requested[batch] = at, LOST_LEASE, cell
                lost.setdefault(cell, []).append(batch)
        return lost


class PushWorker:
    """There is one per process."""

    def __init__(self, app: Any, hostname: str, *, revoked: Container[str]) -> None:
        raise_open_files()  # before the client asks how many connections it may have
        #: The name of the worker, and of the bell that it rings for itself when it has room again.
        self.name = f"{hostname}:{os.getpid()}:{secrets.token_hex(3)}"
        self._lease_numbers = itertools.count(1)
        #: The lease of each cell.
        self.leases = [self._new_lease() for _ in all_cells()]
        self.stages = Stages(
            self.name,
            app=app,
            hostname=hostname,
            revoked=revoked,
            intake=self,
            renew=lambda: self._heart.renew(),
            on_room=self._tell_of_room,
        )
        self.pager = Pager()
        #: Regions without a living worker of their own, which this worker has taken over.
        self.adopted: tuple[str, ...] = ()
        #: Regions whose queues the worker consumes, as far as it has requested their messages yet.
        self._own_regions: set[str] = set()
        #: Those whose messages it has requested since the last heartbeat.
        self._requested_regions: set[str] = set()
        self._heart = Heart(self)
        self._regions = RegionKeeper(is_well=lambda: self.leases[0].holds(), adopt=self.adopt)
        self.requests = BatchRequests()
        #: The regions whose queues Celery consumes.
        self.consumed: tuple[str, ...] = ()
        #: The batch that Celery's thread hands over message by message.
        self._arrival = Arrival(None)
        #: The epoch of the settings of each cell's subscriptions.
        self._epochs = [0 for _ in all_cells()]
        self._was_full = False
        self._stopping = False
        #: Whether Celery has the deliver task's strategy (strategy.py).
        self.has_strategy = False

    def serves(self, consumer: Any) -> bool:
        return isinstance(consumer.connection.transport, Transport)

    def start(self) -> None:
        # Millions of short-lived objects have hardly any cycles: frequent collections would take 5 % of the time.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        return_large_blocks()
        self.stages.start()
        self.pager.start()
        self._heart.start()  # the first fetch needs the lease
        self._regions.start()

    # Called by the transport, in Celery's thread.

    def fetch_arguments(self, region: str, *, is_own: bool) -> tuple[str, str, int, int, str]:
        """Return the key of the worker's record, the batch's name, the room for messages, a lane's limit, the lease."""
        self._note(region, is_own=is_own)
        room, lease = self.room(), self.leases[0]
        batch = self.requests.add(lease, cell=0) if room > 0 else self.requests.unused()
        return work_key(self.name), batch, room, settings.BACKLOG_LIMIT, lease.name

    def room(self) -> int:
        room = settings.WORKER_OUTSTANDING - len(self.stages.outstanding)
        self._was_full = room <= 0
        return max(min(room, FETCH_SIZE), 0)

    def fetch(self, region: str, cell: int, *, room: int, is_own: bool) -> tuple[str, Fetched | None]:
        """Fetch from a cell. Return the batch's name and the reply; None if the cell's node of a Cluster is away."""
        self._note(region, is_own=is_own)
        lease = self.leases[cell]
        batch = self.requests.add(lease, cell=cell)
        backlog = default_backlog()
        with beside_an_outage():
            return batch, backlog.fetch(region, cell, worker=self.name, batch=batch, count=room, lease=lease.name)
        return batch, None

    def look(self, region: str, *, is_own: bool) -> dict[int, Fetched]:
        """Do as `fetch` in every cell whose node is there, without taking messages; cells that have some ring."""
        self._note(region, is_own=is_own)
        leases = [lease.name for lease in self.leases]
        with beside_an_outage():
            return default_backlog().look(region, worker=self.name, leases=leases)
        return {}

    def _note(self, region: str, *, is_own: bool) -> None:
        if is_own:
            self._own_regions.add(region)
            self._requested_regions.add(region)

    def fetched(self, batch: str, messages: Sequence[bytes], *, epoch: int, pages: list[bytes], cell: int = 0) -> None:
        """Page the lanes that a reply asks for, and begin its batch. The messages themselves follow one by one."""
        if epoch != self._epochs[cell]:
            self._refresh(epoch, cell=cell)
        for request in PageRequest.parse_all(pages):
            self.pager.page(request)
        self._arrival = self._arrived(batch, messages, cell=cell)

    def _arrived(self, batch: str, messages: Sequence[bytes], *, cell: int) -> Arrival:
        lease = self.requests.arrived(batch, lease=self.leases[cell])
        return Arrival(Batch(batch, lease, cell=cell) if messages else None)

    def take(self, message: dict[str, Any]) -> bool:
        """Take a decoded message of the deliver task; return false for any other, which Celery then handles."""
        headers = message["headers"]
        return headers["task"] == TASK_NAME and self.take_delivery(task_id_of(headers), body_of(message))

    def take_delivery(self, task_id: str, body: str | bytes) -> bool:
        """Take a message that is known to be of the deliver task; return false if Celery is to handle it."""
        if not self.has_strategy:
            return False
        self.stages.fetch(self._arrival, task_id, body)
        return True

    def hand_back(self, message: dict[str, Any]) -> None:
        """Hand back a decoded message that arrived after its queue was cancelled."""
        delivery = self.stages.read_task(self._arrival, task_id_of(message["headers"]), body_of(message))
        if delivery is not None:
            delivery.settle_as(Verdict.RELEASE)

    def sort_in(self, region: str, message: bytes) -> None:
        """Put a message that Celery was called with into the queue of its cell, where there are several."""
        try:
            with beside_an_outage():  # the audit finds the message again
                default_backlog().sort_in(region, message)
        except (ValueError, TypeError, KeyError):
            self.undecodable(message)

    def ring(self, region: str, *, cell: int) -> None:
        """Wake a worker that sleeps on the region's bell, probably this one, to look at a cell."""
        try:
            default_backlog().ring(region, cell=cell)
        except redis.RedisError:
            logger.debug("no ring: Redis is away")

    def delivered(self) -> None:
        """Send the messages of a reply on their way, after the last of them."""
        self.stages.accept(self._arrival)

    def undecodable(self, message: bytes) -> None:
        reject(repr(message)[:4096], reason="not JSON")

    def _refresh(self, epoch: int, *, cell: int) -> None:
        """Forget the plans of subscriptions that have changed.

        Forget all plans if Redis was wiped and counts anew, or no longer knows which subscriptions have changed.
        """
        try:
            # More changes may follow before the changes are read, so half of those that are kept count.
            if not epoch - CHANGES_KEPT // 2 <= self._epochs[cell] <= epoch:
                self.stages.engine.plans.forget_all()
            else:
                self.stages.engine.plans.forget(default_backlog().changed_since(self._epochs[cell], cell=cell))
            self._epochs[cell] = epoch
        except redis.RedisError:
            self.stages.engine.plans.forget_all()

    # Called by the settler.

    def takes(self, counts: Mapping[tuple[str, int], int]) -> list[Take]:
        """Return what to take of the queues of these regions and cells, if the worker serves them: at most so many."""
        if self._stopping:
            return []
        return [
            self._take(region, cell, min(count, FETCH_SIZE))
            for (region, cell), count in counts.items()
            if (region in self.consumed or region in self.adopted) and regionholds.holds_now(region)
        ]

    def _take(self, region: str, cell: int, most: int) -> Take:
        lease = self.leases[cell]
        batch = self.requests.add(lease, cell=cell)
        return Take(work_key(self.name, cell=cell), region, batch, most, lease.name, cell)

    def taken(self, taken: Taken) -> None:
        arrival = self._arrived(taken.batch, taken.messages, cell=taken.cell)
        if taken.epoch != self._epochs[taken.cell]:
            self._refresh(taken.epoch, cell=taken.cell)
        for message in taken.messages:
            try:
                self.stages.fetch(arrival, *(parse_own(message) or parse_any(message)))
            except (ValueError, TypeError, KeyError):
                self.undecodable(message)
        self.stages.accept(arrival)

    # Called from the other threads.

    def _new_lease(self) -> WorkerLease:
        return WorkerLease(f"{self.name}/{next(self._lease_numbers)}")

    def lose_lease(self, *, cell: int = 0) -> None:
        """Get another lease of a cell, as other workers have the ordered messages that were fetched with this one."""
        self.leases[cell].is_lost = True
        self.leases[cell] = self._new_lease()

    def regions_served(self) -> set[str]:
        """Return the worker's own regions whose messages it has requested since the last call."""
        regions, self._requested_regions = self._requested_regions, set()
        return regions

    def adopt(self, regions: tuple[str, ...]) -> None:
        """Serve these regions, but for the worker's own, instead of those adopted before.

        After a stop of all workers the worker's own regions are silent too, until it has requested their messages.
        """
        if not self._own_regions and regionholds.is_alone():
            return
        regions = tuple(region for region in regions if region not in self._own_regions)
        if regions != self.adopted:
            logger.warning("regions of other workers that this worker serves now: %s", ", ".join(regions) or "none")
            self.adopted = regions

    def _tell_of_room(self) -> None:
        if self._was_full and not self._stopping:
            try:
                default_backlog().shared.lpush(bell_key(self.name), "1")
            except redis.RedisError:
                logger.debug("no ring: Redis is away")

    # Shutdown.

    def drain(self) -> None:
        """Wait for the outstanding pushes, hand back the unfinished ones, settle everything, and stop all threads."""
        self._stopping = True
        self.stages.drain()
        self.pager.stop()
        self._regions.stop()
        self._heart.stop()
        self.stages.flower.stop()
        if (process_journal := journal()) is not None:
            process_journal.close()


def return_large_blocks() -> None:
    """Return every large block to the system as soon as it is freed.

    Otherwise glibc raises the threshold to the largest block so far, and later payloads fragment the heap, which
    then never shrinks. Other C libraries have no such option.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, OWN_MEMORY_BYTES)
