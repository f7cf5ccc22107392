"""Limits on what one caller has under way at once, so that no caller takes all memory or all threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pushhub.common.errors import ResourceExhausted


class Slots:
    """A number of slots per key, such as a caller. Without a free slot, a call waits."""

    def __init__(self, size: int, *, most_waiting: int) -> None:
        self._size = size
        self._most = size + most_waiting
        #: The semaphore of each key, and how many calls hold a slot or wait for it.
        self._by_key: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Hold a slot in this block; ResourceExhausted if too many calls wait already."""
        semaphore, users = self._by_key.get(key) or (asyncio.Semaphore(self._size), 0)
        if users >= self._most:
            raise ResourceExhausted("Too many calls at once: wait for some to be answered.")
        self._by_key[key] = semaphore, users + 1
        try:
            async with semaphore:
                yield
        finally:
            self._leave(key)

    def _leave(self, key: str) -> None:
        semaphore, users = self._by_key.pop(key)
        if users > 1:
            self._by_key[key] = semaphore, users - 1
