"""The push client over TLS, with the test's own certificate authority."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deliveries.client.client import PushClient
from tests.certificates import Authority
from tests.integration.client.push_client import Results, client_of, connections_of, eventually, on_uvloop, outcome
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering

CLOSING = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@asynccontextmanager
async def trusting(authority: Authority, **options: Any) -> AsyncIterator[PushClient]:
    async with client_of(ca_file=str(authority.ca_file), allow_http=False, **options) as client:
        yield client


@on_uvloop
async def test_a_trusted_certificate(authority: Authority) -> None:
    context = authority.server_context("localhost", "127.0.0.1")
    asked: list[str] = []
    context.set_servername_callback(lambda _, name, __: asked.append(name))
    async with Misbehaving(answering(NO_CONTENT), context=context) as server, trusting(authority) as client:
        for _ in range(3):
            assert await outcome(client, f"https://localhost:{server.port}/") == 204
        assert await outcome(client, server.url) == 204
    assert server.connections == 2
    assert asked == ["localhost", None]


@on_uvloop
async def test_ipv6(authority: Authority) -> None:
    context = authority.server_context("::1")
    async with Misbehaving(answering(NO_CONTENT), context=context, host="::1") as server, trusting(authority) as client:
        assert await outcome(client, server.url) == 204


@pytest.mark.parametrize(
    "context_of",
    [
        lambda authority, folder: Authority(folder).server_context("localhost"),
        lambda authority, folder: authority.server_context("other.test", "127.0.0.1"),
        lambda authority, folder: authority.server_context("localhost", expired=True),
    ],
    ids=["unknown authority", "another name", "expired"],
)
@on_uvloop
async def test_an_invalid_certificate(authority: Authority, context_of: Any, tmp_path: Path) -> None:
    context = context_of(authority, tmp_path)
    async with Misbehaving(answering(NO_CONTENT), context=context) as server:
        async with trusting(authority) as client:
            assert await outcome(client, f"https://localhost:{server.port}/") == "tls_failed"
            assert connections_of(client) == 0
        assert not server.requests
        async with trusting(authority, tls_verify=False) as client:
            assert await outcome(client, f"https://localhost:{server.port}/") == 204


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@on_uvloop
async def test_tls_1_1_is_too_old(authority: Authority) -> None:
    context = authority.server_context("localhost")
    context.set_ciphers("DEFAULT@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with Misbehaving(answering(NO_CONTENT), context=context) as server, trusting(authority) as client:
        assert await outcome(client, f"https://localhost:{server.port}/") == "tls_failed"


@on_uvloop
async def test_a_server_without_tls(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.hang()

    async with Misbehaving(script) as server, trusting(authority) as client:
        assert await outcome(client, f"https://localhost:{server.port}/") == "tls_failed"


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x03"])
@on_uvloop
async def test_a_handshake_that_hangs(authority: Authority, said: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.send(said)
        await peer.hang()

    async with Misbehaving(script) as server, trusting(authority, tls_timeout_s=0.05) as client:
        assert await outcome(client, f"https://localhost:{server.port}/") == "tls_failed"
        assert connections_of(client) == 0


@on_uvloop
async def test_a_handshake_that_breaks_off(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        peer.reset()

    async with Misbehaving(script) as server, trusting(authority) as client:
        assert await outcome(client, f"https://localhost:{server.port}/") == "tls_failed"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@on_uvloop
async def test_later_connections_resume_the_session(authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.server_context("localhost")
    context.minimum_version = context.maximum_version = version
    reused: list[bool] = []

    async def script(peer: Peer) -> None:
        await peer.request()
        reused.append(peer.ssl_object.session_reused)
        await peer.send(CLOSING)

    async with Misbehaving(script, context=context) as server, trusting(authority) as client:
        for _ in range(4):
            assert await outcome(client, f"https://localhost:{server.port}/") == 204
    assert reused == [False, True, True, True]


@on_uvloop
async def test_a_session_is_not_offered_to_another_name(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed session skips the certificate check, so the trust in one name must not extend to another."""
    context = authority.server_context("one.test")
    address = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address])
    async with Misbehaving(answering(CLOSING), context=context) as server, trusting(authority) as client:
        assert await outcome(client, f"https://one.test:{server.port}/") == 204
        assert await outcome(client, f"https://one.test:{server.port}/") == 204
        assert await outcome(client, f"https://two.test:{server.port}/") == "tls_failed"


@on_uvloop
async def test_the_race_with_a_close_is_won_over_tls_too(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(NO_CONTENT)
        await peer.request()
        if peer.number == 2:
            await peer.send(NO_CONTENT)

    context = authority.server_context("localhost")
    async with Misbehaving(script, context=context) as server, trusting(authority) as client:
        assert await outcome(client, f"https://localhost:{server.port}/", b"1") == 204
        assert await outcome(client, f"https://localhost:{server.port}/", b"2") == 204
    assert server.requests == [b"1", b"2", b"2"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nhello", 200),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "body_incomplete"),
        (b"HTTP/1.1 102 Processing\r\n\r\n", 102),
        (b"", "reset"),
        (b"garbage", "invalid_response"),
    ],
)
@on_uvloop
async def test_an_answer_that_ends_with_the_connection(
    authority: Authority, answer: bytes, expected: int | str
) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    context = authority.server_context("localhost")
    async with (
        Misbehaving(script, context=context) as server,
        trusting(authority, processing_grace_s=1) as client,
    ):
        assert await outcome(client, f"https://localhost:{server.port}/") == expected


@on_uvloop
async def test_a_large_body_over_tls_and_an_early_answer(authority: Authority) -> None:
    async def script(peer: Peer) -> None:
        if peer.number == 1:
            await peer.request()
            await peer.send(NO_CONTENT)
        await peer.head()
        await peer.send(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
        await peer.hang()

    context = authority.server_context("localhost")
    async with Misbehaving(script, context=context) as server, trusting(authority) as client:
        url = f"https://localhost:{server.port}/"
        assert await outcome(client, url, b"a" * 3_000_000) == 204
        assert await outcome(client, url, b"a" * 3_000_000) == 413
        assert await outcome(client, url) == 413
    assert server.connections == 2
    assert server.requests == [b"a" * 3_000_000]


@on_uvloop
async def test_many_at_a_time(authority: Authority) -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await gate.wait()
            await peer.send(NO_CONTENT)

    context = authority.server_context("localhost")
    async with Misbehaving(script, context=context) as server, trusting(authority) as client:
        results = Results(client, f"https://localhost:{server.port}/")
        for _ in range(100):
            results.post()
        await eventually(lambda: len(server.requests) == 100)
        gate.set()
        assert {result.status for result in await results.all()} == {204}
