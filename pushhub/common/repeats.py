"""Lets a log line that repeats through once in a while, with how often it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable

#: So long a line is silent after it was logged.
SILENT_SECONDS = 60.0
#: Lines that are remembered; the one that was logged longest ago is forgotten first.
MAX_LINES = 10_000


class Repeats:
    """Counts lines by key. Only one thread may use it."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        #: When each line was last logged, and how often it came since.
        self._lines: dict[Hashable, tuple[float, int]] = {}

    def count(self, key: Hashable) -> int:
        """Note that a line came. Return how often it came since it was last logged, or 0 if it is to be silent."""
        now = self._monotonic()
        logged_at, silenced = self._lines.get(key, (now - SILENT_SECONDS, 0))
        if now - logged_at < SILENT_SECONDS:
            self._lines[key] = (logged_at, silenced + 1)
            return 0
        self._lines.pop(key, None)
        self._lines[key] = (now, 0)
        if len(self._lines) > MAX_LINES:
            del self._lines[next(iter(self._lines))]
        return silenced + 1
