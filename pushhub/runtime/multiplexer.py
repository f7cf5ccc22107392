"""One public port for gRPC and REST: the first bytes of a connection say which, as on Google's emulator.

HTTP/2 with prior knowledge begins with a fixed preface (RFC 9113, section 3.4), which no HTTP/1.1 request begins with.
After it has chosen a server, and told REST the client's address, the multiplexer passes on bytes and the end of the
stream in both directions. The server limits how long a request may take; the multiplexer limits the connections per
client.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import closing, suppress

from pushhub.common.peers import client_of, forget_peer, note_peer
from pushhub.common.servers import BACKLOG
from pushhub.runtime.httpserver.forwarding import client_line
from pushhub.runtime.httpserver.limits import Connections, Limits

logger = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CHUNK_BYTES = 256 * 1024
#: How long a client may go on sending after the server has closed, so that it receives the last response.
LINGER_SECONDS = 2.0

Address = tuple[str, int]


class PortMultiplexer:
    """Accepts connections on the public address and connects each to one of two servers on loopback."""

    def __init__(
        self, *, grpc: Address, rest: Address, limits: Limits, files: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self._grpc = grpc
        self._rest = rest
        self._tls = tls
        self._limits = limits
        self._addresses = Connections(most_per_address=limits.connections, files=files, files_each=2)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Handover(self._take), sock=listening, backlog=BACKLOG)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _take(self, connection: socket.socket, address: str) -> None:
        """Serve a new connection, unless its client has too many. It counts from before the handshake of TLS."""
        client = client_of(address)
        if not self._addresses.enter(client):
            connection.close()
            return
        task = asyncio.create_task(self._accept(connection, address, client))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _accept(self, connection: socket.socket, address: str, client: str) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        handshake_seconds = self._limits.head_seconds if self._tls else None
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=handshake_seconds
            )
            with closing(asyncio.StreamWriter(transport, protocol, reader, loop)) as writer:
                await self._serve(reader, writer, address)
        except (OSError, asyncio.CancelledError, ssl.SSLError) as error:
            logger.debug("a connection ended: %s", type(error).__name__)
        finally:
            self._addresses.leave(client)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        first = await asyncio.wait_for(_first_bytes(reader), self._limits.head_seconds)
        if not first:
            return
        is_grpc = first.startswith(PREFACE)
        server_reader, server_writer = await asyncio.open_connection(*(self._grpc if is_grpc else self._rest))
        port: int = server_writer.get_extra_info("sockname")[1]
        if is_grpc:
            note_peer(port, address)
        else:
            first = client_line(address, is_secure=self._tls is not None) + first
        try:
            server_writer.write(first)
            await _pass_both_ways(reader, writer, server_reader, server_writer, write_seconds=self._limits.body_seconds)
        finally:
            forget_peer(port)
            server_writer.close()


class _Handover(asyncio.Protocol):
    """Hands a new connection over before anything of it is read."""

    def __init__(self, take: Callable[[socket.socket, str], None]) -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = transport.get_extra_info("socket")
        address = str((transport.get_extra_info("peername") or [""])[0])
        try:
            connection = socket.fromfd(accepted.fileno(), accepted.family, accepted.type)
        finally:
            transport.abort()  # type: ignore[attr-defined]
        self._take(connection, address)


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """Return enough bytes to tell the two protocols apart, or all bytes before the end."""
    first = b""
    while len(first) < len(PREFACE) and PREFACE.startswith(first):
        chunk = await reader.read(CHUNK_BYTES)
        if not chunk:
            break
        first += chunk
    return first


async def _pass_both_ways(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server_reader: asyncio.StreamReader,
    server_writer: asyncio.StreamWriter,
    *,
    write_seconds: float,
) -> None:
    """Pass on both directions until the server has closed or either connection breaks."""
    upward = asyncio.create_task(_pass_on(reader, server_writer, write_seconds=None))
    downward = asyncio.create_task(_pass_on(server_reader, writer, write_seconds=write_seconds))
    try:
        await asyncio.wait([upward, downward], return_when=asyncio.FIRST_COMPLETED)
        if not downward.done() and upward.exception() is None:
            await downward  # the client sends nothing more and may still wait for a response
        elif not upward.done() and downward.exception() is None:
            with suppress(TimeoutError):
                await asyncio.wait_for(upward, LINGER_SECONDS)
    finally:
        for task in (upward, downward):
            task.cancel()
        await asyncio.gather(upward, downward, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, write_seconds: float | None) -> None:
    """Pass on bytes until the end, and then the end. Raises TimeoutError if the receiving side is too slow."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        # Nearly always the socket has taken it all, and there is nothing to wait for.
        if writer.transport.get_write_buffer_size() or writer.is_closing():
            async with asyncio.timeout(write_seconds):
                await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.close()  # TLS ends both directions at once
