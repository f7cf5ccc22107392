"""Wakes a sleeping worker when a lane is due.

Redis itself cannot do that: an otherwise idle server ends a BRPOP up to 100 ms late, and before 7.0.8 it never ended
one of a millisecond (https://github.com/redis/redis/issues/11687).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

MIN_SECONDS = 0.001


class Alarm:
    """Calls `ring` at the earliest of the times it was set to.

    It has at most one timer at any time. kombu's hub fires ten timers per round, including cancelled ones, and then
    polls for a second: with many cancelled timers every ring would be seconds late.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Any],
        ring: Callable[[], object],
    ) -> None:
        self._clock = clock
        self._call_later = call_later
        self._ring = ring
        self._at = inf
        #: What `call_later` has returned, which can be cancelled.
        self._timer: Any = None

    def set(self, seconds: float) -> None:
        """Ring after this time at the latest."""
        now = self._clock()
        at = now + max(seconds, MIN_SECONDS)
        # If a time has passed without a ring, its timer was lost.
        if not now <= self._at <= at:
            self.cancel()
            self._at = at
            self._timer = self._call_later(at - now, self._due)

    def cancel(self) -> None:
        """Don't ring until the alarm is set again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._at = inf

    def _due(self) -> None:
        self._timer = None
        self._at = inf
        self._ring()
