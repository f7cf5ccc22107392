"""The blocking client, which uses requests, against the same answers, addresses and deadlines as the asyncio client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import requests

from deliveries.client.blocking import BlockingClient
from deliveries.client.client import ClientOptions, Headers, PushResult
from tests.certificates import Authority
from tests.integration.client.push_client import JSON, on_uvloop
from tests.integration.push.test_answers import CLOSED, KEPT_OPEN, OK, V
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering

pytestmark = pytest.mark.any_database

ATTRIBUTES = [("X-Goog-Pubsub-A", "1"), ("x-goog-pubsub-a", "2")]


def push(
    url: str, body: bytes = b"{}", *, timeout_s: float = 20.0, headers: Headers = (), **options: Any
) -> PushResult:
    usual = {"allow_http": True, "allow_private": True, "tls_verify": "ca_file" in options}
    client = BlockingClient(ClientOptions(**{**usual, **options}))
    results: list[PushResult] = []
    endpoint = client.prepare(url, headers=JSON)
    client.post(endpoint, body, headers=headers, timeout_s=timeout_s, on_done=results.append)
    [result] = results
    return result


async def outcome(url: str, body: bytes = b"{}", **options: Any) -> int | str:
    result = await asyncio.to_thread(push, url, body, **options)
    assert (result.status == 0) == bool(result.reason)
    return str(result.reason) or result.status


@pytest.mark.parametrize("name", [*KEPT_OPEN, *CLOSED])
@on_uvloop
async def test_an_answer_means_the_same_as_to_the_push_worker(name: str) -> None:
    stays_open = name in KEPT_OPEN
    answer, expected = KEPT_OPEN[name][:2] if stays_open else CLOSED[name]

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        while name == "1xx flood":
            await peer.send(answer)
        if stays_open:
            await peer.hang()

    async with Misbehaving(script) as server:
        assert await outcome(server.url, processing_grace_s=0.1 if expected == 102 else 1) == expected
    assert len(server.requests) == 1


@on_uvloop
async def test_the_request_is_that_of_the_push_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its target and headers are sent as they are, and no proxy is used."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1/")
    sent: list[str | None] = []
    post = requests.Session.send
    monkeypatch.setattr(requests.Session, "send", lambda *a, **k: sent.append(a[1].method) or post(*a, **k))
    async with Misbehaving(answering(NO_CONTENT)) as server:
        assert await outcome(f"{server.url}/a/../%2fb?c=%20d", b"12345", headers=ATTRIBUTES) == 204
    [head] = server.heads
    lines = head.decode().split("\r\n")
    assert lines[0] == "POST /push/a/../%2fb?c=%20d HTTP/1.1"
    assert set(lines[1:-2]) == {
        f"Host: 127.0.0.1:{server.port}",
        "User-Agent: CloudPubSub-Google",
        "Accept: */*",
        "Accept-Encoding: identity",
        "Content-Length: 5",
        "Content-Type: application/json",
        "X-Goog-Pubsub-A: 1",
        "x-goog-pubsub-a: 2",
    }
    assert sent == ["POST"]


@on_uvloop
async def test_the_ack_deadline_ends_every_phase() -> None:
    async def read_nothing(peer: Peer) -> None:
        await peer.head()
        await asyncio.sleep(60)

    async def drip(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        while True:
            await peer.send(b"A")
            await asyncio.sleep(0.01)

    for script, body in ((read_nothing, b"x" * 50_000_000), (drip, b"")):
        async with Misbehaving(script) as server:
            assert await outcome(server.url, body, timeout_s=0.3) == "deadline_exceeded"


@on_uvloop
async def test_a_retry_after_is_read_and_a_large_body_arrives_whole() -> None:
    answer = V + b"503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    async with Misbehaving(answering(answer)) as server:
        result = await asyncio.to_thread(push, server.url, b"x" * 3_000_000)
    assert (result.status, result.retry_after_s) == (503, 7)
    assert len(server.requests[0]) == 3_000_000


@on_uvloop
async def test_an_address_is_judged_where_the_connection_opens() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server:
        assert await outcome(f"http://localhost:{server.port}/", allow_private=False) == "address_denied"
        assert await outcome(server.url, own_listeners=(("127.0.0.1", server.port),)) == "address_denied"
        assert server.connections == 0
    assert await outcome(server.url) == "connect_failed"
    assert await outcome("http://nowhere.invalid/") == "dns_failed"


@on_uvloop
async def test_certificates_are_verified(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.server_context("localhost")
    async with Misbehaving(answering(NO_CONTENT), context=context) as server:
        url = f"https://localhost:{server.port}/"
        assert await outcome(url, ca_file=str(authority.ca_file)) == 204
        assert await outcome(server.url, ca_file=str(authority.ca_file)) == "tls_failed"  # another name
        assert await outcome(url, tls_verify=True) == "tls_failed"
    assert len(server.requests) == 1
