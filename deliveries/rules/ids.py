"""Message ids: 63-bit numbers that hold the publish time, so that order of id is order of publishing.

Bits from the top: 41 of milliseconds since 2020-01-01, 10 of a process' own random number, 12 of a counter.
The database's primary key refuses the rare twin of two processes; the publisher then draws a new number.
"""

from __future__ import annotations

import threading

#: 2020-01-01T00:00:00Z in milliseconds; 41 bits last from there until 2089.
EPOCH_MS = 1_577_836_800_000
TIME_SHIFT = 22
COUNTER_SIZE = 1 << 12
NODE_SIZE = 1 << 10
#: Reserved for the ids of large publishes (fanout.py); a process draws any other number.
FAN_OUT_NODE = 0


class MessageIds:
    """Gives out ids that never fall and never repeat in this process, even when the clock steps back."""

    def __init__(self, *, node: int) -> None:
        self._node = node % NODE_SIZE
        self._last_ms = 0
        self._counter = 0
        self._lock = threading.Lock()

    def take(self, count: int, *, now_ms: int) -> list[int]:
        """`count` rising ids whose publish time is `now_ms` or, past 4,096 a millisecond, a little later."""
        with self._lock:
            ids = []
            if now_ms > self._last_ms:
                self._last_ms, self._counter = now_ms, 0
            for _ in range(count):
                if self._counter == COUNTER_SIZE:
                    self._last_ms, self._counter = self._last_ms + 1, 0
                ids.append(self._compose(self._last_ms, self._counter))
                self._counter += 1
            return ids

    def renumber(self, *, node: int) -> None:
        """Go on under another number, after the database met an id of ours twice."""
        with self._lock:
            self._node = node % NODE_SIZE

    def _compose(self, at_ms: int, counter: int) -> int:
        return ((at_ms - EPOCH_MS) << TIME_SHIFT) | (self._node * COUNTER_SIZE) | counter


def publish_time_ms(message_id: int) -> int:
    """The publish time of a message, in milliseconds since 1970."""
    return (message_id >> TIME_SHIFT) + EPOCH_MS


def first_id_at(time_ms: int) -> int:
    """The least id a message published at `time_ms` or later can have."""
    return max(time_ms - EPOCH_MS, 0) << TIME_SHIFT
