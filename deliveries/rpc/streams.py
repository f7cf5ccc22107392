"""The streams that are open in this process, by subscription, what each has sent, and the leases of ended calls.

Clients often acknowledge the messages of a stream by unary calls. The stream then has room for more messages.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

#: Called with ack ids, and with the seconds that their leases go on for: 0 if they are gone.
Listener = Callable[[Sequence[str], int], None]

_listeners: dict[int, list[tuple[asyncio.AbstractEventLoop, Listener]]] = defaultdict(list)


@contextmanager
def listening(subscription_id: int, listener: Listener) -> Iterator[None]:
    """In this block, call `listener` in the running loop when unary calls change leases of the subscription."""
    entry = (asyncio.get_running_loop(), listener)
    _listeners[subscription_id].append(entry)
    try:
        yield
    finally:
        _listeners[subscription_id].remove(entry)
        if not _listeners[subscription_id]:
            del _listeners[subscription_id]


def leases_changed(subscription_id: int, ack_ids: Sequence[str], *, seconds: int) -> None:
    """Tell the streams of a subscription; called from any thread."""
    for loop, listener in tuple(_listeners.get(subscription_id, ())):
        loop.call_soon_threadsafe(listener, ack_ids, seconds)


#: The event loop itself keeps no reference to its tasks.
_endings: set[asyncio.Task[None]] = set()


def give_back_later(giving_back: Coroutine[Any, Any, None]) -> None:
    """Run what gives leases back in a task of its own, as the call's task ends.

    Nobody got their messages, and a lapse would cost an attempt.
    """
    ending = asyncio.create_task(giving_back)
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)


async def leases_given_back(*, seconds: float) -> None:
    """Wait until the calls that have ended have given back their leases, at most so long."""
    if _endings:
        await asyncio.wait(_endings, timeout=seconds)


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
