"""Message ids: 63-bit numbers that contain the publish time, so that ids are in the order of publishing:
for ordering keys always (publish/storing.py), for others as far as clocks agree.

Bits from the top: 41 of milliseconds since 2020-01-01, 10 of the process' random number, 12 of a counter. If two
processes have the same number, the database's primary key refuses an id that exists, and the publisher draws a new one.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

#: 2020-01-01T00:00:00Z in milliseconds; 41 bits last until 2089.
EPOCH_MS = 1_577_836_800_000
TIME_SHIFT = 22
COUNTER_SIZE = 1 << 12
NODE_SIZE = 1 << 10
#: The number reserved for large publishes (fanout.py); processes draw any other.
FAN_OUT_NODE = 0


class MessageIds:
    """Hands out ids that never decrease and never repeat in this process, even if the clock steps back."""

    def __init__(self, *, node: int) -> None:
        self._node = node % NODE_SIZE
        self._last_ms = 0
        self._counter = 0
        self._lock = threading.Lock()

    def take(self, count: int, *, now_ms: int) -> list[int]:
        """Return `count` increasing ids with the publish time `now_ms`; after 4,096 per millisecond, a little later."""
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

    def take_after(self, last_id: int, count: int, *, dice: float) -> list[int]:
        """Return increasing ids after one that a process took whose clock is ahead of this one's.

        They are of the next millisecond. `dice`, in [0, 1), keeps them apart from ids that others take there.
        """
        with self._lock:
            first = self._compose((last_id >> TIME_SHIFT) + 1 + EPOCH_MS, int(dice * COUNTER_SIZE))
        return list(range(first, first + count))

    def renumber(self, *, node: int) -> None:
        """Go on under another number, after the database has refused an id that existed."""
        with self._lock:
            self._node = node % NODE_SIZE

    def _compose(self, at_ms: int, counter: int) -> int:
        return ((at_ms - EPOCH_MS) << TIME_SHIFT) | (self._node * COUNTER_SIZE) | counter


def publish_time_ms(message_id: int) -> int:
    """Return the publish time of a message, in milliseconds since 1970."""
    return (message_id >> TIME_SHIFT) + EPOCH_MS


def publish_time(message_id: int) -> datetime:
    return datetime.fromtimestamp(publish_time_ms(message_id) / 1000, UTC)


def age_seconds(message_id: int | None, now: datetime) -> float:
    """Return how long ago a message was published, but no less than 0; 0 for None."""
    return 0.0 if message_id is None else max(now.timestamp() - publish_time_ms(message_id) / 1000, 0.0)


def first_id_at(time_ms: int) -> int:
    """Return the smallest id of a message published at `time_ms` or later."""
    return max(time_ms - EPOCH_MS, 0) << TIME_SHIFT
