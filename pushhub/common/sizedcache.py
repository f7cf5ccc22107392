"""A cache whose values take a bounded number of bytes together."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """The values that were used last, for all threads of a process."""

    def __init__(self, *, most_bytes: int) -> None:
        self._left = most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Key, value: Value, *, size: int) -> None:
        with self._lock:
            if key in self._entries:
                self._left += self._entries.pop(key)[1]
            self._entries[key] = (value, size)
            self._left -= size
            while self._left < 0:
                self._left += self._entries.popitem(last=False)[1][1]
