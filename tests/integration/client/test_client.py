"""The push client's requests, pools, deadlines and shutdown, against a scripted server."""

from __future__ import annotations

import asyncio
import logging
import resource
from functools import partial
from typing import Any

import pytest

from deliveries.client.client import BadEndpoint, ClientOptions, PushClient, PushResult
from tests.integration.client.push_client import (
    Gate,
    Results,
    client_of,
    connections_of,
    eventually,
    on_uvloop,
    outcome,
)
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering

OK_WITH_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@on_uvloop
async def test_the_request_on_the_wire() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        url = f"http://LOCALHOST:{server.port}/a%20b/ü?q=1&r=%2F"
        assert await outcome(client, url, b'{"message":{}}') == 204
    lines = server.heads[0].decode().split("\r\n")
    assert lines[0] == "POST /a%20b/%C3%BC?q=1&r=%2F HTTP/1.1"
    assert sorted(lines[1:-2]) == [
        "Accept-Encoding: identity",
        "Accept: */*",
        "Content-Length: 14",
        "Content-Type: application/json",
        f"Host: localhost:{server.port}",
        "User-Agent: CloudPubSub-Google",
    ]
    assert server.requests == [b'{"message":{}}']


@on_uvloop
async def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        assert await outcome(client, server.url) == 204


@pytest.mark.parametrize(
    "header",
    [
        ("A", "b\r\nC: d"),
        ("A", "b\n"),
        ("A", "b\0"),
        ("A: b\r\nC", "d"),
        ("A:", "b"),
        ("A ", "b"),
        ("", "b"),
        ("Host", "elsewhere.example"),
        ("content-length", "0"),
        ("Transfer-Encoding", "chunked"),
    ],
)
@on_uvloop
async def test_headers_that_would_break_the_request_in_two_are_refused(header: tuple[str, str]) -> None:
    async with client_of() as client:
        with pytest.raises(ValueError, match="headers"):
            client.post(client.prepare("http://localhost:9999/"), b"", headers=[header], timeout_s=1, on_done=print)
        with pytest.raises(ValueError, match="headers"):
            client.prepare("http://localhost:9999/", headers=[header])
        assert client.outstanding == 0


@on_uvloop
async def test_a_request_carries_the_headers_of_its_endpoint_and_its_own() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        results = Results(client, server.url)
        results.post(headers=[("traceparent", "00-1")])
        results.post()
        await results.all()
    lines = [head.decode().split("\r\n")[5:-2] for head in server.heads]
    assert sorted(lines) == [
        ["Content-Length: 2", "Content-Type: application/json"],
        ["Content-Length: 2", "Content-Type: application/json", "traceparent: 00-1"],
    ]


@on_uvloop
async def test_one_connection_serves_request_after_request() -> None:
    async with Misbehaving(answering(OK_WITH_BODY)) as server, client_of() as client:
        for _ in range(50):
            assert await outcome(client, server.url) == 200
        assert connections_of(client) == 1
    assert server.connections == 1


@on_uvloop
async def test_a_connection_is_given_up_at_its_age_however_busy_it_is() -> None:
    """The name of a busy endpoint may lead to another address, while the former one still answers."""
    now = 1000.0
    options: dict[str, Any] = {"clock": lambda: now, "idle_timeout_s": 1000.0}
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of(**options) as client:
        for now, connections in ((1000.0, 1), (1200.0, 1), (1376.0, 1), (1377.0, 2), (1400.0, 2)):
            assert await outcome(client, server.url) == 204
            assert server.connections == connections, now


@on_uvloop
async def test_subscriptions_of_one_origin_share_its_connections() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        for path in ("/a", "/b", "/c"):
            assert await outcome(client, f"http://127.0.0.1:{server.port}{path}") == 204
    assert server.connections == 1


@on_uvloop
async def test_connections_grow_with_the_requests_outstanding_and_the_newest_is_used_first() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of() as client:
        results = Results(client, server.url)
        for _ in range(3):
            results.post()
        await eventually(lambda: len(server.requests) == 3)
        assert (client.outstanding, connections_of(client)) == (3, 3)
        gate.opened.set()
        await results.all()
        used = [peer.sent for peer in server.peers]
        for _ in range(5):
            assert await outcome(client, server.url) == 204
        grown = [peer.sent - before for peer, before in zip(server.peers, used, strict=True)]
    assert sorted(grown) == [0, 0, 5 * len(NO_CONTENT)]


@on_uvloop
async def test_an_idle_connection_is_closed_after_its_time() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of(idle_timeout_s=0.05) as client:
        assert await outcome(client, server.url) == 204
        await eventually(lambda: connections_of(client) == 0)
        assert await outcome(client, server.url) == 204
    assert server.connections == 2


@on_uvloop
async def test_requests_wait_in_order_at_the_limit_of_connections() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of(max_connections=2) as client:
        results = Results(client, server.url)
        for number in range(20):
            results.post(b"%d" % number)
        await eventually(lambda: len(server.requests) == 2)
        gate.opened.set()
        assert {result.status for result in await results.all()} == {204}
    assert server.connections == 2
    assert sorted(results.order) == list(range(20))
    assert sorted(int(body) for body in server.requests[:10]) == list(range(10))


@on_uvloop
async def test_a_retry_after_counts_though_another_request_takes_the_connection_at_once() -> None:
    async def busy(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n")

    async with Misbehaving(busy) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        for _ in range(3):
            results.post()
        assert [result.retry_after_s for result in await results.all()] == [7, 7, 7]
    assert server.connections == 1


@on_uvloop
async def test_a_request_that_waits_for_a_connection_has_a_deadline() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        results.post()
        await eventually(lambda: server.requests)
        results.post(timeout_s=0.05)
        results.post()
        await eventually(lambda: 1 in results.reported)
        gate.opened.set()
        assert [r.reason or r.status for r in await results.all()] == [204, "deadline_exceeded", 204]
    assert len(server.requests) == 2


@on_uvloop
async def test_each_waiting_request_has_its_own_deadline() -> None:
    async with Misbehaving(Gate()) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        request = results.post()
        await eventually(lambda: server.requests)
        for timeout_s in (0.15, 0.05, 0.1):
            results.post(timeout_s=timeout_s)
        await eventually(lambda: len(results.reported) == 3)
        assert results.order == [2, 3, 1]
        client.abort(request)


@on_uvloop
async def test_unexpected_bytes_close_the_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(NO_CONTENT)
        await unasked.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await peer.hang()

    unasked = asyncio.Event()
    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url) == 204
        unasked.set()
        await eventually(lambda: connections_of(client) == 0)
        assert await outcome(client, server.url) == 204
    assert server.connections == 2


@on_uvloop
async def test_a_server_that_speaks_first_is_no_receiver() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"220 mail.example ESMTP\r\n")
        await peer.hang()

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url) in {"invalid_response", "reset"}


@on_uvloop
async def test_abort_reports_once_and_closes() -> None:
    async with Misbehaving(Gate()) as server, client_of(idle_timeout_s=0.05) as client:
        results = Results(client, server.url)
        request = results.post()
        waiting = results.post()
        client.abort(waiting)
        await eventually(lambda: server.requests)
        client.abort(request)
        client.abort(request)
        assert [result.reason for result in await results.all()] == ["aborted", "aborted"]
        await eventually(lambda: connections_of(client) == 0)


@on_uvloop
async def test_an_aborted_request_that_waits_is_not_sent() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        results.post(b"1")
        await eventually(lambda: server.requests)
        aborted = results.post(b"2")
        results.post(b"3")
        client.abort(aborted)
        gate.opened.set()
        assert [result.reason or result.status for result in await results.all()] == [204, "aborted", 204]
    assert server.requests == [b"1", b"3"]


@on_uvloop
async def test_a_request_that_has_waited_is_not_sent_if_it_may_not_begin_any_more() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        results.post(b"1")
        await eventually(lambda: server.requests)
        results.post(b"2", may_begin=lambda: False)
        results.post(b"3", may_begin=lambda: True)
        gate.opened.set()
        assert [result.reason or result.status for result in await results.all()] == [204, "aborted", 204]
    assert server.requests == [b"1", b"3"]


@on_uvloop
async def test_a_push_that_may_not_begin_leaves_an_open_connection_alone() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        results = Results(client, server.url)
        for may_begin in (True, False, True):
            results.post(may_begin=partial(bool, may_begin))
            await results.all()
        assert [result.reason or result.status for result in await results.all()] == [204, "aborted", 204]
        assert connections_of(client) == 1
    assert len(server.requests) == 2


@on_uvloop
async def test_close_gives_up_requests_and_takes_no_more() -> None:
    async with Misbehaving(Gate()) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        results.post()
        results.post()
        await eventually(lambda: server.requests)
        await client.close()
        results.post()
        assert [result.reason for result in await results.all()] == ["aborted", "aborted", "aborted"]
        await eventually(lambda: connections_of(client) == 0)


@on_uvloop
async def test_a_failing_callback_affects_no_other_request(caplog: pytest.LogCaptureFixture) -> None:
    def on_done(result: PushResult) -> None:
        raise RuntimeError("engine trouble")

    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        with caplog.at_level(logging.CRITICAL + 1, "deliveries.client.request"):
            client.post(client.prepare(server.url), b"{}", timeout_s=10, on_done=on_done)
            await eventually(lambda: client.outstanding == 0)
        assert await outcome(client, server.url) == 204
    assert server.connections == 1


@on_uvloop
async def test_a_callback_may_post_at_once() -> None:
    done: list[int] = []

    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        endpoint = client.prepare(server.url)

        def on_done(result: PushResult) -> None:
            done.append(result.status)
            if len(done) < 100:
                client.post(endpoint, b"{}", timeout_s=10, on_done=on_done)

        client.post(endpoint, b"{}", timeout_s=10, on_done=on_done)
        await eventually(lambda: len(done) == 100)
    assert server.connections == 1


@on_uvloop
async def test_two_thousand_outstanding() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 5000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
    gate = Gate()
    async with Misbehaving(gate) as server, client_of() as client:
        results = Results(client, server.url)
        for number in range(2000):
            results.post(b"%d" % number)
        await eventually(lambda: len(server.requests) == 2000)
        assert client.outstanding == connections_of(client) == 2000
        gate.opened.set()
        assert {result.status for result in await results.all()} == {204}
    assert sorted(int(body) for body in server.requests) == list(range(2000))


def test_endpoints_of_one_origin_share_a_pool_and_a_bad_url_is_refused() -> None:
    loop = asyncio.new_event_loop()
    try:
        client = PushClient(loop, options=ClientOptions())
        first, second = client.prepare("https://example.com/a"), client.prepare("https://example.com/b")
        assert first.pool is second.pool
        with pytest.raises(BadEndpoint):
            client.prepare("http://example.com/a")
    finally:
        loop.close()
