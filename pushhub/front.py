"""One public port for gRPC and REST: the first bytes of a connection say which, as on Google's emulator.

HTTP/2 with prior knowledge begins with a fixed preface (RFC 9113, section 3.4), which no HTTP/1.1 request begins with.
From then on bytes are passed on as they come.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from subscriptions.rpc.peers import peer_forget, peer_note

logger = logging.getLogger(__name__)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: How long a connection may take to say what it is.
FIRST_BYTES_SECONDS = 10.0
CHUNK_BYTES = 256 * 1024

Address = tuple[str, int]


class Front:
    """Accepts connections on the public address and joins each to one of two servers on loopback."""

    def __init__(self, *, grpc: Address, rest: Address, tls: ssl.SSLContext | None = None) -> None:
        self._grpc = grpc
        self._rest = rest
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    async def start(self, address: Address) -> None:
        """Listen; OSError where that cannot be."""
        host, port = address
        self._server = await asyncio.start_server(self._accept, host, port, ssl=self._tls, limit=CHUNK_BYTES)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def stop(self) -> None:
        """End what is still open."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError, ssl.SSLError) as error:
            logger.debug("a connection ended: %s", type(error).__name__)
        finally:
            self._open.discard(task)
            _close(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await asyncio.wait_for(_first_bytes(reader), FIRST_BYTES_SECONDS)
        if not first:
            return
        is_grpc = first.startswith(PREFACE)
        behind_reader, behind = await asyncio.open_connection(*(self._grpc if is_grpc else self._rest))
        port: int = behind.get_extra_info("sockname")[1]
        if is_grpc:
            peer_note(port, str((writer.get_extra_info("peername") or [""])[0]))
        try:
            behind.write(first)
            await _join(reader, writer, behind_reader, behind)
        finally:
            peer_forget(port)
            _close(behind)


async def _first_bytes(reader: asyncio.StreamReader) -> bytes:
    """Enough to tell the two apart, or all there is."""
    first = b""
    while len(first) < len(PREFACE) and PREFACE.startswith(first):
        more = await reader.read(CHUNK_BYTES)
        if not more:
            break
        first += more
    return first


async def _join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    behind_reader: asyncio.StreamReader,
    behind: asyncio.StreamWriter,
) -> None:
    """Pass bytes both ways until the server has said its last, or either side breaks off."""
    upward = asyncio.create_task(_pass_on(reader, behind, at_end=_end_of(behind)))
    downward = asyncio.create_task(_pass_on(behind_reader, writer, at_end=lambda: None))
    try:
        await asyncio.wait([upward, downward], return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in (upward, downward):
            task.cancel()
        await asyncio.gather(upward, downward, return_exceptions=True)


def _end_of(writer: asyncio.StreamWriter) -> Callable[[], None]:
    """A client that closes its side may still be waiting for the answer."""

    def end() -> None:
        if writer.can_write_eof():
            writer.write_eof()

    return end


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, at_end: Callable[[], None]) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    at_end()


def _close(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        writer.close()
