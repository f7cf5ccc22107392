"""A push worker's lease: its right to push messages of ordered subscriptions, which its heartbeats renew.

When a worker has been silent for LEASE_MS, another one takes these messages over (beat.lua). The first worker may only
be frozen, so it is fenced: it begins no such push unless it was heard of lately, and Redis ignores what it says of the
messages afterwards (settle.lua). A lease that was lost never holds again; the worker gets another one.
"""

from __future__ import annotations

import time

from deliveries.backlog.workerverbs import LEASE_MS

#: For so long after a heartbeat a worker may begin pushes. The rest of the lease is for the first bytes to go out.
SURE_SECONDS = LEASE_MS / 1000 - 1.0


class WorkerLease:
    """One lease. It holds from its first heartbeat on."""

    __slots__ = ("_sure_until", "is_lost", "is_new", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        #: Whether Redis doesn't know it yet.
        self.is_new = True
        self.is_lost = False
        self._sure_until = 0.0

    def renewed(self, asked_at: float) -> None:
        """Note a heartbeat that was sent at this time (time.monotonic)."""
        self.is_new = False
        self._sure_until = asked_at + SURE_SECONDS

    def lose(self) -> None:
        """Note that another worker has taken the messages over."""
        self.is_lost = True

    def holds(self) -> bool:
        """Return whether no other worker can have taken the messages over."""
        return not self.is_lost and time.monotonic() < self._sure_until


#: Stands for any lease that was lost.
LOST_LEASE = WorkerLease("lost")
LOST_LEASE.lose()
