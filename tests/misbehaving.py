"""A server that sends raw bytes by a script, for tests of what a receiver may do to the push client.

    async def hang_up(peer: Peer) -> None:
        await peer.request()
        peer.send(b"HTTP/1.1 20")

    async with Misbehaving(hang_up) as server: ...

A script runs once per connection; when it ends, the connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Peer:
    """One accepted connection, as its script sees it."""

    def __init__(self, server: Misbehaving, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number = server.connections
        self.address: str = writer.get_extra_info("peername")[0]
        self.sent = 0
        self._server = server
        self._reader = reader
        self._writer = writer

    async def head(self) -> bytes:
        """Return the head of the next request; its body is left in the socket."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        self._server.heads.append(head)
        return head

    async def request(self) -> bytes:
        """Return the next request with its body."""
        head = await self.head()
        length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = await self._reader.readexactly(int(length.partition(b":")[2]))
        self._server.requests.append(body)
        return head + body

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()
        self.sent += len(data)

    async def hang(self) -> None:
        """Wait until the client hangs up, and drop what it sends."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """End the connection with RST in place of FIN."""
        sock: socket.socket = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    @property
    def ssl_object(self) -> ssl.SSLObject:
        ssl_object: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return ssl_object


Script = Callable[[Peer], Awaitable[None]]


class Misbehaving:
    """Listens on a free loopback port. `requests` are the bodies of the whole requests that were read, in order."""

    def __init__(self, script: Script, *, context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.connections = 0
        self.heads: list[bytes] = []
        self.requests: list[bytes] = []
        self.peers: list[Peer] = []
        self.port = 0
        self._script = script
        self._context = context
        self._host = host
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._accepted, self._host, 0, ssl=self._context, backlog=4096, limit=1 << 20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._context else 'http'}://{host}:{self.port}/push"

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        peer = Peer(self, reader, writer)
        self.peers.append(peer)
        task = asyncio.create_task(self._run(peer, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, peer: Peer, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._script(peer)
        finally:
            writer.close()


def answering(*answers: bytes) -> Script:
    """Return a script that answers each request of a connection with the next answer, and repeats the last one."""

    async def script(peer: Peer) -> None:
        position = 0
        while True:
            await peer.request()
            await peer.send(answers[position])
            position = min(position + 1, len(answers) - 1)

    return script
