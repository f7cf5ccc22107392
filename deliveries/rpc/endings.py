"""Leases that are given back after their call: nobody got their messages, and a lapse would cost an attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: The event loop itself keeps no reference to its tasks.
_endings: set[asyncio.Task[None]] = set()


def give_back_later(giving_back: Coroutine[Any, Any, None]) -> None:
    """Run what gives leases back in a task of its own, as the call's task ends."""
    ending = asyncio.create_task(giving_back)
    _endings.add(ending)
    ending.add_done_callback(_endings.discard)


async def leases_given_back(*, seconds: float) -> None:
    """Wait until the calls that have ended have given back their leases, at most so long."""
    if _endings:
        await asyncio.wait(_endings, timeout=seconds)
