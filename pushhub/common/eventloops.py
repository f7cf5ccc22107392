"""The event loop of servers and pushes: uvloop's, or asyncio's own where only the emulator is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ImportError:
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
else:
    new_event_loop = uvloop.new_event_loop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new event loop and return its result."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
