"""Wakes a sleeping worker when a lane is due.

Redis itself is no clock for that: it ends a BRPOP up to 100 ms late while nothing else happens, and before 7.0.8 one of
a millisecond never (https://github.com/redis/redis/issues/11687).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

MIN_SECONDS = 0.001


class Timer(Protocol):
    """A call that is to be made later."""

    def cancel(self) -> None:
        """Don't make it."""


class Alarm:
    """Calls `ring` at the earliest of the times it was set to.

    At any time it has one timer at most. kombu's hub fires ten timers a round, those included that mean nothing any
    more, and then polls for a second: with many overtaken timers every ring would come seconds late.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
        ring: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._ring = ring
        self._at = inf
        self._timer: Timer | None = None

    def set(self, seconds: float) -> None:
        """Ring after so many seconds, if not earlier."""
        now = self._clock()
        at = now + max(seconds, MIN_SECONDS)
        # A time that is past and did not ring is one whose timer was lost.
        if not now <= self._at <= at:
            self.cancel()
            self._at = at
            self._timer = self._call_later(at - now, self._due)

    def cancel(self) -> None:
        """Ring no more, until it is set again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._at = inf

    def _due(self) -> None:
        self._timer = None
        self._at = inf
        self._ring()
