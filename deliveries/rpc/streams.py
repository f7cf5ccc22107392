"""The streams that are open in this process, by subscription.

Clients often acknowledge the messages of a stream by unary calls. The stream then has room for more messages.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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
