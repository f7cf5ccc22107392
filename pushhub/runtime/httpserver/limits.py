"""Limits per client of a port: time, connections, and bytes of request bodies that are being received."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from django.conf import settings

#: The connections of a port, and the open files that they leave to the database, Redis and files.
MOST_CONNECTIONS = 10_000
OTHER_FILES = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a client may take for its requests, and how many connections it may have."""

    #: The time from the first byte of a head to its end.
    head_seconds: float
    #: The time for a body, which grows with the bytes received (MIN_BYTES_PER_SECOND of the HTTP server).
    body_seconds: float
    #: The time between two requests of a connection.
    idle_seconds: float
    #: Connections per address; 0 for no limit but the one for all addresses together.
    connections: int
    #: Whether each request comes by a proxy that says last in X-Forwarded-For for whom.
    is_behind_proxy: bool = False


def read_limits() -> Limits:
    return Limits(
        head_seconds=settings.HEAD_SECONDS,
        body_seconds=settings.BODY_SECONDS,
        idle_seconds=settings.IDLE_SECONDS,
        connections=settings.CLIENT_CONNECTIONS,
        is_behind_proxy=settings.BEHIND_PROXY,
    )


class Connections:
    """Counts the open connections by client."""

    def __init__(self, *, most_per_address: int, files: int, files_each: int = 1) -> None:
        """`files` is how many files this process may open, of which a connection takes `files_each`."""
        self._most = max(min(MOST_CONNECTIONS, (files - OTHER_FILES) // files_each), 1)
        self._most_per_address = most_per_address or self._most
        self._by_address: Counter[str] = Counter()
        self._count = 0

    def enter(self, address: str) -> bool:
        """Count a new connection. Return False, and don't count it, if there are too many."""
        if self._count >= self._most or self._by_address[address] >= self._most_per_address:
            return False
        self._by_address[address] += 1
        self._count += 1
        return True

    def leave(self, address: str) -> None:
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


@dataclass(slots=True, eq=False)
class Reservation:
    """Bytes that one request needs; `granted` is called if it had to wait and has them now."""

    address: str
    size: int
    granted: Callable[[], None]


class ByteBudget:
    """Bytes shared by all requests. Each address may have a part of them; what doesn't fit waits in a queue."""

    def __init__(self, *, most: int, most_per_address: int) -> None:
        self._left = most
        self._most_per_address = most_per_address
        self._by_address: Counter[str] = Counter()
        self._waiting: deque[Reservation] = deque()

    def reserve(self, reservation: Reservation) -> bool:
        """Reserve the bytes, or queue the reservation and return False."""
        if not self._take(reservation):
            self._waiting.append(reservation)
            return False
        return True

    def release(self, reservation: Reservation) -> None:
        """Give the bytes back, or stop waiting for them. Grant the queued reservations that fit now."""
        if reservation in self._waiting:
            self._waiting.remove(reservation)
            return
        self._left += reservation.size
        self._by_address[reservation.address] -= reservation.size
        if not self._by_address[reservation.address]:
            del self._by_address[reservation.address]
        for waiting in tuple(self._waiting):
            if self._take(waiting):
                self._waiting.remove(waiting)
                waiting.granted()

    def _take(self, reservation: Reservation) -> bool:
        taken = self._by_address[reservation.address] + reservation.size
        if taken > self._most_per_address or reservation.size > self._left:
            return False
        self._left -= reservation.size
        self._by_address[reservation.address] = taken
        return True
