"""The messages that a stream's client holds, and how many more it may be sent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

#: The most messages that are leased at a time, so that other streams get their share.
MOST_AT_ONCE = 250
#: For a client that set no limit. It is far above what any client asks for.
NO_LIMIT = 100_000


@dataclass(slots=True)
class _Held:
    size: int
    ends: float


class Outstanding:
    """Messages sent on a stream that are neither acknowledged, given back nor lapsed.

    The client sets the limits; 0 or less is no limit. A client with room for any bytes gets at least one message, so
    it may get more bytes than its limit.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages if max_messages > 0 else NO_LIMIT
        self._max_bytes = max_bytes if max_bytes > 0 else 1 << 62
        self._held: dict[str, _Held] = {}
        self._bytes = 0
        #: Messages of which nothing was heard since they were sent, with the end of their lease in ms of Redis' clock.
        self.untouched: dict[str, int] = {}

    def sent(self, ack_id: str, size: int, seconds: int, ends_ms: int) -> None:
        self._held[ack_id] = _Held(size, time.monotonic() + seconds)
        self._bytes += size
        self.untouched[ack_id] = ends_ms

    def gone(self, ack_ids: Iterable[str]) -> None:
        for ack_id in ack_ids:
            self.untouched.pop(ack_id, None)
            held = self._held.pop(ack_id, None)
            if held is not None:
                self._bytes -= held.size

    def ack_ids(self) -> list[str]:
        return list(self._held)

    def extended(self, ack_ids: Iterable[str], seconds: int) -> None:
        ends = time.monotonic() + seconds
        for ack_id in ack_ids:
            self.untouched.pop(ack_id, None)
            if ack_id in self._held:
                self._held[ack_id].ends = ends

    def room(self) -> tuple[int, int]:
        """Return how many messages and how many bytes may be leased now; both are 0 if either has none left."""
        if len(self._held) >= self._max_messages or self._bytes >= self._max_bytes:
            self._forget_lapsed()
        messages = min(self._max_messages - len(self._held), MOST_AT_ONCE)
        size = self._max_bytes - self._bytes
        return (messages, size) if messages > 0 and size > 0 else (0, 0)

    def next_lapse(self) -> float:
        """Seconds until the first lease lapses, never nothing."""
        if not self._held:
            return 1.0
        # The oldest is among the first; an exact minimum isn't worth a look at each of thousands.
        first = next(iter(self._held.values()))
        return max(first.ends - time.monotonic(), 0.05)

    def _forget_lapsed(self) -> None:
        now = time.monotonic()
        self.gone([ack_id for ack_id, held in self._held.items() if held.ends <= now])
