"""A pace for opening connections.

Opening one takes ten times the work of a push over one that is open: a loop that opens hundreds at a time lets every
other push wait, and so does a receiver that accepts them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: 2,000 a second: a quarter of what one core can do.
AT_ONCE = 6
TURN_SECONDS = 0.003


class Pace:
    """Shared by all pools of a client; what one turn does not grant, the next ones do, to each pool in order."""

    __slots__ = ("_left", "_loop", "_timer", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = AT_ONCE
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, wanted: int) -> int:
        """How many of these may be opened now."""
        granted = min(wanted, self._left)
        self._left -= granted
        if granted and self._timer is None:
            self._timer = self._loop.call_later(TURN_SECONDS, self._turn)
        return granted

    def later(self, ask_again: Callable[[], None]) -> None:
        """Call this in a turn that has some left."""
        self._waiting.append(ask_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._waiting.clear()

    def _turn(self) -> None:
        self._timer = None
        self._left = AT_ONCE
        for _ in range(len(self._waiting)):
            if not self._left:
                return
            self._waiting.popleft()()
