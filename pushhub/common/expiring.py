"""A cache whose values expire after a fixed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ExpiringCache(Generic[Key, Value]):
    """Values that are good for `seconds`, for all threads of a process. A full cache starts again empty."""

    def __init__(self, *, seconds: float, max_entries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[Key, tuple[float, Value]] = {}
        #: How often the cache was cleared. See `put`.
        self.generation = 0

    def get(self, key: Key) -> Value | None:
        expires_at, value = self._entries.get(key, (0.0, None))
        return value if expires_at > self._clock() else None

    def put(
        self, key: Key, value: Value, *, at_most_seconds: float | None = None, generation: int | None = None
    ) -> None:
        """Keep a value for the cache's time, or for a shorter time.

        `generation` is the cache's at the time when the value's reading began. If the cache was cleared since then, the
        value may be out of date and is not kept.
        """
        seconds = self._seconds if at_most_seconds is None else min(self._seconds, at_most_seconds)
        with self._lock:
            if generation not in (None, self.generation):
                return
            if len(self._entries) >= self._max_entries:
                self._entries.clear()
            self._entries[key] = (self._clock() + seconds, value)

    def clear(self) -> None:
        with self._lock:
            self.generation += 1
            self._entries.clear()
