"""Limits how many connections are opened per second.

Opening a connection takes ten times the work of a push over an open one. If the loop opened hundreds at a time, all
other pushes would wait, and the receiver would be just as busy accepting them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

#: Connections per turn; 2,000 per second, a quarter of what one core can do.
AT_ONCE = 6
TURN_SECONDS = 0.003


class Pace:
    """Grants connections to all pools of a client; pools that get none in one turn are served in later ones."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = AT_ONCE
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, connections: int) -> int:
        """Return how many of these connections may be opened now."""
        granted = min(connections, self._left)
        self._left -= granted
        if granted and self._timer is None:
            self._timer = self._loop.call_later(TURN_SECONDS, self._turn)
        return granted

    def later(self, ask_again: Callable[[], None]) -> None:
        """Call `ask_again` in a later turn."""
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
