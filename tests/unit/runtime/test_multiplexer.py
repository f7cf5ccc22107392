"""The port multiplexer in front of two plain servers: which one gets a connection, and when connections end."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pushhub.common import peers
from pushhub.common.servers import listen
from pushhub.runtime.httpserver.forwarding import read_client
from pushhub.runtime.httpserver.limits import Limits
from pushhub.runtime.multiplexer import PREFACE, PortMultiplexer
from tests.certificates import Authority
from tests.integration.client.push_client import on_uvloop
from tests.ports import free_port

Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LARGE = bytes(range(256)) * 40_000
#: Far longer than a test takes.
LONG = 600.0
SHORT = 0.05


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, name: bytes) -> None:
    """Answer with a name and everything that comes, until the end."""
    writer.write(name)
    while data := await reader.read(100_000):
        writer.write(data)
        await writer.drain()
    writer.close()


async def grpc_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await echo(reader, writer, name=b"grpc:")


async def rest_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert read_client((await reader.readline()).rstrip()) == ("http", "127.0.0.1")
    await echo(reader, writer, name=b"rest:")


@asynccontextmanager
async def multiplexer(
    *,
    rest: Handle = rest_echo,
    rest_port: int = 0,
    head_seconds: float = LONG,
    body_seconds: float = LONG,
    connections: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    """Yield the public port. With `rest_port`, REST requests go to that port and not to a server of this block."""
    limits = Limits(head_seconds=head_seconds, body_seconds=body_seconds, idle_seconds=LONG, connections=connections)
    grpc_server = await asyncio.start_server(grpc_echo, "127.0.0.1", 0)
    rest_server = await asyncio.start_server(rest, "127.0.0.1", 0)
    chosen = PortMultiplexer(
        grpc=grpc_server.sockets[0].getsockname(),
        rest=("127.0.0.1", rest_port) if rest_port else rest_server.sockets[0].getsockname(),
        limits=limits,
        files=1000,
        tls=tls,
    )
    listening = listen(("127.0.0.1", 0))
    await chosen.start(listening)
    try:
        yield listening.getsockname()[1]
    finally:
        chosen.stop_accepting()
        await chosen.stop()
        for server in (grpc_server, rest_server):
            server.close()
            await server.wait_closed()


async def answer_to(port: int, *parts: bytes) -> bytes:
    """Send the parts, each in a packet of its own, and the end. Return everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    receiving = asyncio.create_task(reader.read(-1))
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write_eof()
    answer = await receiving
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([PREFACE + b"frames"], b"grpc:"),
        ([PREFACE[:3], PREFACE[3:10], PREFACE[10:], b"frames"], b"grpc:"),
        ([b"GET / HTTP/1.1\r\n\r\n"], b"rest:"),
        ([b"PRI", b" * HTTP/1.1\r\n\r\n"], b"rest:"),
        ([b"P"], b"rest:"),
        ([b"POST / HTTP/1.1\r\n\r\n", LARGE], b"rest:"),
    ],
    ids=["preface", "preface in packets", "request", "nearly the preface", "one byte", "a large body"],
)
@on_uvloop
async def test_the_first_bytes_choose_the_server_which_gets_all_of_them(parts: list[bytes], name: bytes) -> None:
    async with multiplexer() as port:
        assert await answer_to(port, *parts) == name + b"".join(parts)


@on_uvloop
async def test_a_connection_without_a_byte_ends_without_an_answer() -> None:
    async with multiplexer() as port:
        assert await answer_to(port) == b""


@on_uvloop
async def test_a_client_that_sends_too_little_is_closed() -> None:
    async with multiplexer(head_seconds=SHORT) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(PREFACE[:5])
        answer = await reader.read(-1)
        writer.close()
        assert answer == b""


@on_uvloop
async def test_a_client_that_reads_nothing_is_dropped_and_the_server_learns_of_it() -> None:
    """Given an answer that fits into no buffer, when the client reads nothing of it, then it is cut off."""
    failed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        try:
            while True:
                writer.write(LARGE)
                await writer.drain()
        except ConnectionError:
            failed.set()
        finally:
            writer.close()

    async with multiplexer(rest=answer, body_seconds=SHORT) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET")
        await asyncio.wait_for(failed.wait(), LONG)
        writer.close()


@on_uvloop
async def test_a_slow_reader_gets_everything(caplog: pytest.LogCaptureFixture) -> None:
    """Given an answer that fits into no buffer, when the client begins to read later, then it gets all of it."""
    written = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(3 * LARGE)
        written.set()
        writer.close()

    with caplog.at_level(logging.WARNING):
        async with multiplexer(rest=answer) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET")
            await written.wait()
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert len(await reader.read(-1)) == 3 * len(LARGE)
            writer.close()
    assert not caplog.records


@on_uvloop
async def test_a_server_that_is_away_ends_the_connection() -> None:
    async with multiplexer(rest_port=free_port()) as port:
        assert await answer_to(port, b"GET / HTTP/1.1\r\n\r\n") == b""


@on_uvloop
async def test_an_address_has_so_many_connections_at_once() -> None:
    """Given two allowed connections, then a third one is closed. When one of them ends, there is room for another."""
    async with multiplexer(connections=2) as port:
        first = await asyncio.open_connection("127.0.0.1", port)
        second = await asyncio.open_connection("127.0.0.1", port)
        for _, writer in (first, second):
            writer.write(PREFACE)
        for reader, _ in (first, second):
            assert await reader.readexactly(5) == b"grpc:"
        assert sorted(peers._addresses.values()) == ["127.0.0.1", "127.0.0.1"]
        reader, third = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(-1) == b""
        third.close()

        first[1].write_eof()
        assert (await first[0].read(-1)) == PREFACE
        first[1].close()
        async with asyncio.timeout(LONG):
            while await answer_to(port, b"GET") != b"rest:GET":
                await asyncio.sleep(0.01)
        second[1].close()
    async with asyncio.timeout(LONG):
        while peers._addresses:
            await asyncio.sleep(0.01)


@on_uvloop
async def test_a_connection_counts_before_its_handshake(tmp_path: Path) -> None:
    """Given two allowed connections and two clients that say nothing, then a third one is closed at once."""
    tls = Authority(tmp_path).server_context("localhost")
    async with asyncio.timeout(60), multiplexer(connections=2, tls=tls) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(-1) == b""
        for other in (writer, *(one for _, one in silent)):
            other.close()
