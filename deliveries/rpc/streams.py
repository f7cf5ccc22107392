"""The streams that are open in this process, by subscription, and the leases of calls that have ended.

Clients often acknowledge the messages of a stream by unary calls. The stream then has room for more messages.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
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
