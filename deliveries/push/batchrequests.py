"""The batches that a worker has requested, until they arrive."""

from __future__ import annotations

import itertools
import time

from deliveries.backlog.workerverbs import LOST_LEASE, WorkerLease

#: A batch that was requested so long ago and has not arrived is lost with its reply. Redis may still run the request
#: later, so the worker looks for the batch until it is this much older.
LOST_SECONDS = 15.0
FORGOTTEN_SECONDS = 600.0


class BatchRequests:
    """Its methods may be called from any thread."""

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
