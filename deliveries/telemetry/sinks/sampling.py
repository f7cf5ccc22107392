"""Lets a number of events per second through, and counts for how many others each of them stands."""

from __future__ import annotations

import time
from collections.abc import Callable


class Sample:
    """A rate, spread over the second in bursts that are no longer than that."""

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._left = rate
        self._at = clock()
        self._skipped = 0

    def take(self, count: int) -> list[int]:
        """Return, for each event of `count` that passes, how many it stands for: itself and those skipped before."""
        now = self._clock()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        passed = min(count, int(self._left))
        self._left -= passed
        if not passed:
            self._skipped += count
            return []
        weights = [1 + self._skipped, *[1] * (passed - 1)]
        self._skipped = count - passed
        return weights
