"""Names to addresses: with a time limit, a short memory, and one lookup at a time for a name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

#: Of a longer answer the rest is not looked at.
MAX_ADDRESSES = 8
MAX_REMEMBERED = 10_000
#: Lookups that may be going on at a time. A lookup that hangs holds a thread until the system's resolver gives up.
MAX_LOOKUPS = 32


class _Remembered(NamedTuple):
    addresses: tuple[str, ...]
    until: float


def _addresses(name: str) -> tuple[str, ...]:
    """In the system's order of preference. A scoped address keeps its zone, so that the guard denies it."""
    found: dict[str, None] = {}
    for _, _, _, _, sockaddr in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
        found[str(sockaddr[0])] = None
        if len(found) == MAX_ADDRESSES:
            break
    return tuple(found)


class Resolver:
    """Asks the system's resolver on daemon threads of its own, so that a name server that hangs cannot hold up the
    lookups of others in the loop's small pool, nor the end of the process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        clock: Callable[[], float],
        timeout_s: float,
        keep_s: float,
        keep_failure_s: float,
        lookup: Callable[[str], tuple[str, ...]] = _addresses,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._timeout_s = timeout_s
        self._keep_s = keep_s
        self._keep_failure_s = keep_failure_s
        self._lookup = lookup
        self._remembered: dict[str, _Remembered] = {}
        self._asked: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._places = asyncio.Semaphore(MAX_LOOKUPS)

    async def resolve(self, name: str) -> tuple[str, ...]:
        """Empty where the name has no address, or none in time."""
        remembered = self._remembered.get(name)
        if remembered is not None and self._clock() < remembered.until:
            return remembered.addresses
        task = self._asked.get(name)
        if task is None:
            task = self._asked[name] = self._loop.create_task(self._ask(name))
        return await asyncio.shield(task)

    async def _ask(self, name: str) -> tuple[str, ...]:
        addresses: tuple[str, ...] = ()
        try:
            with contextlib.suppress(TimeoutError, OSError, UnicodeError):
                addresses = await asyncio.wait_for(self._ask_thread(name), self._timeout_s)
        finally:
            del self._asked[name]
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        keep_s = self._keep_s if addresses else self._keep_failure_s
        self._remembered[name] = _Remembered(addresses, self._clock() + keep_s)
        return addresses

    async def _ask_thread(self, name: str) -> tuple[str, ...]:
        await self._places.acquire()
        answer: asyncio.Future[tuple[str, ...]] = self._loop.create_future()
        threading.Thread(target=self._run, args=(name, answer), name="resolver", daemon=True).start()
        return await answer

    def _run(self, name: str, answer: asyncio.Future[tuple[str, ...]]) -> None:
        try:
            found: tuple[str, ...] | Exception = self._lookup(name)
        except Exception as exception:
            found = exception
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answered, answer, found)

    def _answered(self, answer: asyncio.Future[tuple[str, ...]], found: tuple[str, ...] | Exception) -> None:
        """The place comes free only now: a lookup that was given up still holds its thread."""
        self._places.release()
        if answer.done():
            return
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)
