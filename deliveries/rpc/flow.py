"""The messages that a stream's client holds, and how many more it may be sent."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

#: The most messages that are leased at a time, so that other streams get their share.
MOST_AT_ONCE = 250
#: For a client that set no limit. It is far above what any client asks for.
NO_LIMIT = 100_000
#: The most messages that Redis is asked about at a time.
MOST_LOOKED_AT = 10_000


class Outstanding:
    """Messages sent on a stream, as long as nobody knows that their leases have ended.

    Only Redis knows when a lease lapses, because other processes may extend it. The client sets the limits; 0 or less
    is no limit. A client with room for any bytes gets at least one message, so it may get more bytes than its limit.
    """

    def __init__(self, *, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages if max_messages > 0 else NO_LIMIT
        self._max_bytes = max_bytes if max_bytes > 0 else 1 << 62
        #: The size of each message.
        self._held: dict[str, int] = {}
        self._bytes = 0
        #: Messages of which nothing was heard since they were sent, with the end of their lease in ms of Redis' clock.
        self.untouched: dict[str, int] = {}

    def sent(self, ack_id: str, size: int, ends_ms: int) -> None:
        self._held[ack_id] = size
        self._bytes += size
        self.untouched[ack_id] = ends_ms

    def gone(self, ack_ids: Iterable[str]) -> None:
        for ack_id in ack_ids:
            self.untouched.pop(ack_id, None)
            self._bytes -= self._held.pop(ack_id, 0)

    def oldest(self) -> list[str]:
        return list(islice(self._held, MOST_LOOKED_AT))

    def touched(self, ack_ids: Iterable[str]) -> None:
        for ack_id in ack_ids:
            self.untouched.pop(ack_id, None)

    def room(self) -> tuple[int, int]:
        """Return how many messages and how many bytes may be leased now; both are 0 if either has none left."""
        messages = min(self._max_messages - len(self._held), MOST_AT_ONCE)
        size = self._max_bytes - self._bytes
        return (messages, size) if messages > 0 and size > 0 else (0, 0)
