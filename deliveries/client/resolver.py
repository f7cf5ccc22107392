"""DNS lookups with a time limit, a short cache, and at most one lookup at a time per name."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

from pushhub.common.expiring import ExpiringCache

#: Further addresses of a name are ignored.
MAX_ADDRESSES = 8
MAX_REMEMBERED = 10_000
#: Concurrent lookups. A lookup that hangs occupies a thread until the system's resolver gives up.
MAX_LOOKUPS = 32
#: Of those, for names that end in the same two labels: a name server that hangs must not take everybody's places.
MAX_DOMAIN_LOOKUPS = 8


def _addresses(name: str) -> tuple[str, ...]:
    """Return the addresses in the system's order of preference.

    A scoped address keeps its zone, so that the guard denies it.
    """
    addresses: dict[str, None] = {}
    for _, _, _, _, sockaddr in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM):
        addresses[str(sockaddr[0])] = None
        if len(addresses) == MAX_ADDRESSES:
            break
    return tuple(addresses)


class Resolver:
    """Asks the system's resolver on its own daemon threads.

    In the loop's small thread pool a name server that hangs would delay all other lookups, and the end of the process.
    """

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
        self._timeout_s = timeout_s
        self._keep_failure_s = keep_failure_s
        self._lookup = lookup
        self._remembered = ExpiringCache[str, tuple[str, ...]](seconds=keep_s, max_entries=MAX_REMEMBERED, clock=clock)
        self._lookups: dict[str, asyncio.Task[tuple[str, ...]]] = {}
        self._places = asyncio.Semaphore(MAX_LOOKUPS)
        #: By the last two labels of names. A domain without lookups is forgotten.
        self._domains: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def resolve(self, name: str) -> tuple[str, ...]:
        """Return the addresses of a name; none if there are none or the time limit has passed."""
        remembered = self._remembered.get(name)
        if remembered is not None:
            return remembered
        task = self._lookups.get(name)
        if task is None:
            task = self._lookups[name] = self._loop.create_task(self._ask(name))
        return await asyncio.shield(task)

    async def _ask(self, name: str) -> tuple[str, ...]:
        addresses: tuple[str, ...] = ()
        try:
            with contextlib.suppress(TimeoutError, OSError, UnicodeError):
                addresses = await asyncio.wait_for(self._ask_thread(name), self._timeout_s)
        finally:
            del self._lookups[name]
        self._remembered.put(name, addresses, at_most_seconds=None if addresses else self._keep_failure_s)
        return addresses

    async def _ask_thread(self, name: str) -> tuple[str, ...]:
        domain_name = ".".join(name.lower().rstrip(".").rsplit(".", 2)[-2:])
        domain = self._domains.setdefault(domain_name, asyncio.Semaphore(MAX_DOMAIN_LOOKUPS))
        await domain.acquire()
        try:
            await self._places.acquire()
        except asyncio.CancelledError:
            domain.release()
            raise
        answer: asyncio.Future[tuple[str, ...]] = self._loop.create_future()
        thread = threading.Thread(target=self._run, args=(name, domain, answer), name="resolver", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # this machine has no more threads
            self._answered(domain, answer, OSError(*error.args))
        return await answer

    def _run(self, name: str, domain: asyncio.Semaphore, answer: asyncio.Future[tuple[str, ...]]) -> None:
        try:
            result: tuple[str, ...] | Exception = self._lookup(name)
        except Exception as exception:
            result = exception
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._answered, domain, answer, result)

    def _answered(
        self,
        domain: asyncio.Semaphore,
        answer: asyncio.Future[tuple[str, ...]],
        result: tuple[str, ...] | Exception,
    ) -> None:
        """Pass the result on, and free the thread's place. A lookup that timed out occupies its thread until now."""
        domain.release()
        self._places.release()
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
