"""The verbs of workers: they fetch from every cell, and beat in every cell."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, cast

import orjson
from django.conf import settings
from redis.exceptions import ResponseError

from deliveries.backlog.connection import Steps, server_ms
from deliveries.backlog.records import (
    Health,
    PageRequest,
    all_cells,
    cell_key,
    cell_of,
    low_queue_key,
    queue_key,
    work_key,
)
from deliveries.backlog.scripts import Clients, Scripts, Verb, answered, call_all, ring, try_each
from deliveries.rules.taskmessage import body_of, parse_body
from pushhub.common.redisclient import CELLS_KEY
from pushhub.common.redisurls import is_cluster

#: Redis keeps the last changes of settings of each cell, so that deleted subscriptions don't take room for ever.
CHANGES_KEPT = 10_000
#: A worker without a heartbeat for this time is dead; the messages that it held go back to the queue.
DEAD_AFTER_MS = 15_000
#: Each worker that lives is heard of within this time.
HEARD_MS = 2_000
#: Messages of ordered lanes go to another worker after a shorter silence. For so long after a heartbeat a worker may
#: begin to push them: the rest is for the first bytes to go out.
LEASE_MS = 3_500
SURE_SECONDS = LEASE_MS / 1000 - 1.0


class Fetched(NamedTuple):
    """The reply of fetch.lua."""

    messages: list[bytes]
    #: The time until the next lane of the cell is due, 0 if one is due now, -1 if none is.
    wait_ms: int
    #: The epoch of the settings of the cell's subscriptions.
    epoch: int
    #: The pages that are wanted, for PageRequest.parse_all.
    pages: list[Any]

    @classmethod
    def parse(cls, reply: Sequence[Any]) -> Fetched:
        messages, wait_ms, epoch, pages = reply
        return cls(messages, int(wait_ms), int(epoch), pages)


@dataclass(slots=True, eq=False)
class WorkerLease:
    """A push worker's right to push messages of ordered subscriptions of a cell, from its first heartbeat on.

    When a worker has been silent for LEASE_MS, another one takes these messages over (beat.lua). The first worker may
    only be frozen, so it is fenced: it begins no such push unless it was heard of lately, and Redis ignores what it
    says of the messages afterwards (settle.lua). A lease that was lost never holds again; the worker gets another one.
    """

    name: str = ""
    #: Whether Redis doesn't know it yet.
    is_new: bool = True
    #: Whether another worker has taken the messages over.
    is_lost: bool = False
    _sure_until: float = 0.0

    def renewed(self, asked_at: float) -> None:
        """Note a heartbeat that was sent at this time (time.monotonic)."""
        self.is_new = False
        self._sure_until = asked_at + SURE_SECONDS

    def holds(self) -> bool:
        """Return whether no other worker can have taken the messages over."""
        return not self.is_lost and time.monotonic() < self._sure_until


#: Stands for any lease that was lost.
LOST_LEASE = WorkerLease("lost", is_lost=True)


class WorkerVerbs:
    """The part of a backlog for workers."""

    limit: int

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        #: The client for the keys of cells, and for what all of them share.
        self.client, self.shared = clients
        self.scripts = Scripts(clients)
        #: The bytes of each cell when it was last known.
        self._bytes: dict[int, int] = {}

    def fetch(self, region: str, cell: int, *, worker: str, batch: str, count: int, lease: str) -> Fetched:
        """Take messages of a cell, pump its lanes that are due, and claim the pages that they want (fetch.lua)."""
        return self._fetch_each(region, {cell: lease}, worker=worker, batch=batch, count=count)[cell]

    def look(self, region: str, *, worker: str, leases: Sequence[str]) -> dict[int, Fetched]:
        """Do as `fetch` in every cell, in one round trip and without taking messages: cells that have some ring.

        Cells whose nodes of a Cluster are away are left out, unless all are.
        """
        return self._fetch_each(region, dict(enumerate(leases)), worker=worker, batch="", count=0)

    def _fetch_each(
        self, region: str, leases: Mapping[int, str], *, worker: str, batch: str, count: int
    ) -> dict[int, Fetched]:
        calls = [
            ([queue_key(region, cell=cell), work_key(worker, cell=cell)], [region, batch, count, self.limit, lease])
            for cell, lease in leases.items()
        ]
        replies = self._try_cells(self.scripts.fetch, calls)
        return {cell: Fetched.parse(reply) for cell, reply in answered(leases, replies)}

    def _try_cells(self, verb: Verb, calls: Sequence[tuple[Sequence[str], Sequence[Any]]]) -> list[Any]:
        """Return the replies of a verb's calls in cells, with the errors of some; raise one if all have failed."""
        replies = try_each(self.clients, [(verb, keys, args) for keys, args in calls])
        if replies and all(isinstance(reply, Exception) for reply in replies):
            raise replies[0]
        return replies

    def sort_in(self, region: str, message: bytes) -> None:
        """Put a task message into its cell's queue. Raises ValueError, TypeError or KeyError for another message."""
        cell = cell_of(int(parse_body(body_of(orjson.loads(message))).subscription_id))
        self.client.lpush(queue_key(region, cell=cell), message)
        self.ring(region, cell=cell)

    def wake(self, region: str) -> tuple[float, list[PageRequest]]:
        """Pump the lanes that are due. Return the seconds until the next one is, and the pages that are wanted.

        It is a fetch of a worker whose messages come in another way, and that has one cell: it takes none.
        """
        fetched = self.fetch(region, 0, worker="", batch="", count=0, lease="-")
        return fetched.wait_ms / 1000 if fetched.wait_ms >= 0 else inf, PageRequest.parse_all(fetched.pages)

    def beat(
        self,
        worker: str = "",
        *,
        oldest_job_seconds: float = 0.0,
        lease: str = "",
        is_new_lease: bool = False,
        regions: Iterable[str] = (),
    ) -> Health:
        """Renew the heartbeat of a worker that has the same lease in every cell, or of a caller that is none."""
        leases = [WorkerLease(lease, is_new_lease)] * len(all_cells())
        healths = self.beats(worker, oldest_job_seconds=oldest_job_seconds, leases=leases, regions=regions)
        return Health.of_all(healths.values())

    def beats(
        self, worker: str, *, oldest_job_seconds: float, leases: Sequence[WorkerLease], regions: Iterable[str]
    ) -> dict[int, Health]:
        """Renew a worker's heartbeat and lease in every cell, and put back what dead workers held (beat.lua).

        The worker serves these regions. Return what became of each cell; the first one knows the regions. Cells whose
        nodes of a Cluster are away are left out, unless all are.
        """
        fixed = [worker, DEAD_AFTER_MS, round(oldest_job_seconds * 1000)]
        calls: list[tuple[list[str], list[Any]]] = []
        for cell, lease in enumerate(leases):
            others = sum(self._bytes.values()) - self._bytes.get(cell, 0) if len(self._bytes) > 1 else ""
            args = [*fixed, lease.name, int(lease.is_new), LEASE_MS, others, *(regions if cell == 0 else ())]
            calls.append(([cell_key(cell, "workers")], args))
        replies = self._try_cells(self.scripts.beat, calls)
        healths = {cell: Health.parse(reply) for cell, reply in answered(all_cells(), replies)}
        self._bytes |= {cell: health.bytes_held for cell, health in healths.items()}
        return healths

    def regions_silent(self) -> dict[str, float]:
        """Return the regions that no worker serves, with the seconds since one did or is taken to have done."""
        return self.beat().silent_regions

    def note_regions(self, regions: Iterable[str]) -> None:
        """Note that messages wait in these regions. An unknown region is silent unless a worker of it beats soon."""
        names = list(regions)
        if names:
            silent_since = int(server_ms(self.shared)) - DEAD_AFTER_MS + HEARD_MS
            self.client.zadd(cell_key(0, "regions"), dict.fromkeys(names, silent_since), nx=True)

    def forget_regions(self, regions: Sequence[str]) -> None:
        """Forget regions in which nothing waits and nothing will."""
        if regions:
            self.client.zrem(cell_key(0, "regions"), *regions)

    def empty_queues(self, region: str) -> None:
        """Drop what waits in a region's queues, as its lanes are forgotten."""
        for cell in all_cells():
            self.client.delete(queue_key(region, cell=cell), low_queue_key(region, cell=cell))

    def put_back(self, worker: str, batches: Sequence[str], *, cell: int = 0) -> int:
        """Put batches that a worker requested and never got back into their queues. Return the number of messages."""
        return int(self.scripts.putback(keys=[work_key(worker, cell=cell)], args=[worker, *batches]))

    def leave(self, worker: str, *, leases: Mapping[int, str] | None = None) -> bool:
        """Sign a worker off, with its lease of each cell. Return false if it has batches, which others take over."""
        leases = leases or {}
        calls = [([work_key(worker, cell=cell)], [worker, leases.get(cell, "")]) for cell in all_cells()]
        return all(call_all(self.clients, self.scripts.leave, calls))

    def finish(self, worker: str, batch: str, *, cell: int = 0) -> None:
        """Remove the record of a batch without anything to settle."""
        self.scripts.finish(keys=[work_key(worker, cell=cell)], args=[batch])

    def held(self, regions: Iterable[str]) -> set[str]:
        """Return all deliveries in a queue or with a worker (held.lua). This is slow, for the audit only."""
        names = list(regions)
        calls = [([cell_key(cell, "workers")], names) for cell in all_cells()]
        return {task.decode() for tasks in call_all(self.clients, self.scripts.held, calls) for task in tasks}

    def announce_change(self, subscription_id: int) -> None:
        """Make all workers read this subscription's settings again before its next push (announce.lua)."""
        cell = cell_of(subscription_id)
        self.scripts.announce(keys=[cell_key(cell, "changed")], args=[subscription_id, CHANGES_KEPT])

    def changed_since(self, epoch: int, *, cell: int = 0) -> list[int]:
        """Return the cell's subscriptions that have changed since an epoch, of the last CHANGES_KEPT."""
        members = self.client.zrangebyscore(cell_key(cell, "changed"), f"({epoch}", "+inf")
        return [int(cast(bytes, member)) for member in members]

    @contextmanager
    def rebuilding(self, cells: Collection[int] | None = None) -> Iterator[None]:
        """Mark that Redis knows all lanes of cells, of which the block tells it, and the number of all cells.

        A wipe of Redis removes the marks, also one during the block.
        """
        steps = Steps()
        for cell in all_cells() if cells is None else cells:
            with steps:
                self.client.set(cell_key(cell, "rebuilding"), 1)
        yield
        with steps:
            self.client.set(CELLS_KEY, len(all_cells()))
        for cell in all_cells() if cells is None else cells:
            with steps, suppress(ResponseError):  # it is gone
                self.client.rename(cell_key(cell, "rebuilding"), cell_key(cell, "alive"))
        steps.end()

    def disown_cells(self) -> None:
        """Delete what a Cluster has: each cell is emptied before its next use, as if its last writes were lost."""
        if is_cluster(settings.REDIS_URL):
            for cell in all_cells():
                self.client.set(cell_key(cell, "primary"), "")

    def ring(self, region: str, *, cell: int = 0) -> None:
        """Make a worker look at a cell for messages of a region: one that sleeps, or the next one that is about to."""
        ring(self.shared, region, [cell])
