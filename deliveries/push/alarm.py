"""Wakes a sleeping worker when a lane is due.

Redis itself is no clock for that: it ends a BRPOP up to 100 ms late while nothing else happens, and before 7.0.8 one of
a millisecond never (https://github.com/redis/redis/issues/11687).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

MIN_SECONDS = 0.001


class Alarm:
    """Calls `ring` at the earliest of the times it was set to; one that was overtaken is silent."""

    def __init__(
        self, *, clock: Callable[[], float], call_later: Callable[..., object], ring: Callable[[], object]
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._ring = ring
        self._at = inf

    def set(self, seconds: float) -> None:
        """Ring after so many seconds, if not earlier."""
        now = self._clock()
        at = now + max(seconds, MIN_SECONDS)
        # A time that is past and did not ring is one whose timer was lost.
        if not now <= self._at <= at:
            self._at = at
            self._call_later(at - now, self._due, at)

    def _due(self, at: float) -> None:
        if at == self._at:
            self._at = inf
            self._ring()
