"""Opens connections: DNS, address guard, TCP and TLS, each phase with its own time limit."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import socket
from collections.abc import Callable
from typing import TypeVar

from deliveries.client.options import ClientOptions
from deliveries.client.resolver import Resolver
from deliveries.client.tls import ResumingContext
from deliveries.rules.outcome import Reason
from pushhub.common.pushurls import Origin

ConnectionT = TypeVar("ConnectionT", bound=asyncio.BaseProtocol)

#: This machine has run out of a resource; the receiver is not at fault.
_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
#: From linux/in.h: the kernel chooses the port when connecting, so that one port serves connections to many receivers.
_IP_BIND_ADDRESS_NO_PORT = 24


class DialFailed(Exception):
    """The connection could not be opened. `shortage`: this machine has no more ports or files."""

    def __init__(self, reason: Reason, *, shortage: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.shortage = shortage


class Dialer:
    """Connects to exactly the addresses that the guard has checked; a name is never resolved a second time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        options: ClientOptions,
        context: ResumingContext,
        clock: Callable[[], float],
    ) -> None:
        self._loop = loop
        self._options = options
        self._guard = options.guard()
        self._resolver = Resolver(
            loop,
            clock=clock,
            timeout_s=options.dns_timeout_s,
            keep_s=options.dns_cache_s,
            keep_failure_s=options.dns_failure_cache_s,
        )
        self.context = context
        sources = options.source_addresses
        self._sources = {
            socket.AF_INET: itertools.cycle(source for source in sources if ":" not in source),
            socket.AF_INET6: itertools.cycle(source for source in sources if ":" in source),
        }

    async def dial(self, origin: Origin, factory: Callable[[], ConnectionT]) -> ConnectionT:
        """Open a connection to the origin and return its protocol object, made by `factory`. Raises DialFailed."""
        sock = await self.connect(origin)
        try:
            return await self._start(sock, origin, factory)
        except BaseException:
            sock.close()
            raise

    async def connect(self, origin: Origin) -> socket.socket:
        """Return a non-blocking socket that is connected to an address of the origin. Raises DialFailed."""
        return await self._connect(await self._vetted(origin), origin.port)

    async def _vetted(self, origin: Origin) -> list[str]:
        host = origin.host
        addresses = (host,) if _is_address(host) else await self._resolver.resolve(host)
        if not addresses:
            raise DialFailed(Reason.DNS_FAILED)
        vetted = [address for address in addresses if not self._guard.why_denied(address, origin.port)]
        if not vetted:
            raise DialFailed(Reason.ADDRESS_DENIED)
        return vetted

    async def _connect(self, addresses: list[str], port: int) -> socket.socket:
        """Try the addresses in order, each for an equal share of the remaining time."""
        ends = self._loop.time() + self._options.connect_timeout_s
        failure = DialFailed(Reason.CONNECT_FAILED)
        for position, address in enumerate(addresses):
            share = (ends - self._loop.time()) / (len(addresses) - position)
            try:
                return await self._connect_one(address, port, share)
            except TimeoutError:
                failure = DialFailed(Reason.CONNECT_TIMEOUT)
            except OSError as error:
                failure = DialFailed(Reason.CONNECT_FAILED, shortage=error.errno in _SHORTAGES)
        raise failure

    async def _connect_one(self, address: str, port: int, seconds: float) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            source = next(self._sources[family], "")
            if source:
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((source, 0))
            async with asyncio.timeout(seconds):
                await self._loop.sock_connect(sock, (address, port))
        except BaseException:
            sock.close()
            raise
        return sock

    async def _start(self, sock: socket.socket, origin: Origin, factory: Callable[[], ConnectionT]) -> ConnectionT:
        if not origin.tls:
            _, connection = await self._loop.create_connection(factory, sock=sock)
            return connection
        try:
            _, connection = await self._loop.create_connection(
                factory,
                sock=sock,
                ssl=self.context,
                server_hostname=origin.host,
                ssl_handshake_timeout=self._options.tls_timeout_s,
            )
        except OSError:  # the base class of SSLError and TimeoutError too
            raise DialFailed(Reason.TLS_FAILED) from None
        return connection


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, host)
            return True
    return False
