"""The push client's pools, deadlines, races and end, against a scripted server."""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import threading
from typing import Any

import pytest

from deliveries.push.client import BadEndpoint, ClientOptions, PushClient, PushResult
from tests.integration.push_client import JSON, Results, client_of, eventually, on_uvloop, outcome
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering
from tests.ports import free_port

OK_WITH_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


class Gate:
    """Lets the script of a server answer when the test says so."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        while True:
            await peer.request()
            await self.opened.wait()
            await peer.send(NO_CONTENT)


@on_uvloop
async def test_the_request_on_the_wire() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        url = f"http://LOCALHOST:{server.port}/a%20b/ü?q=1&r=%2F#fragment"
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


@pytest.mark.parametrize("headers", [b"A: b", b"A: b\r\n\r\n", b"\r\n\r\nPOST / HTTP/1.1\r\n"])
@on_uvloop
async def test_headers_that_would_break_the_request_in_two_are_refused(headers: bytes) -> None:
    async with client_of() as client:
        with pytest.raises(ValueError, match="headers"):
            client.post(client.prepare("http://localhost:9999/"), headers, b"", 1, print)
        assert client.outstanding == 0


# Pools


@on_uvloop
async def test_one_connection_serves_request_after_request() -> None:
    async with Misbehaving(answering(OK_WITH_BODY)) as server, client_of() as client:
        for _ in range(50):
            assert await outcome(client, server.url) == 200
        assert client.connections == 1
    assert server.connections == 1


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
        assert (client.outstanding, client.connections) == (3, 3)
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
        await eventually(lambda: client.connections == 0)
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
async def test_a_request_that_waits_for_a_connection_has_its_deadline_too() -> None:
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
async def test_bytes_that_nobody_asked_for_cost_the_connection() -> None:
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
        await eventually(lambda: client.connections == 0)
        assert await outcome(client, server.url) == 204
    assert server.connections == 2


@on_uvloop
async def test_a_server_that_speaks_first_is_no_receiver() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(b"220 mail.example ESMTP\r\n")
        await peer.hang()

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url) in {"invalid_response", "reset"}


# The race of a keep-alive connection


@pytest.mark.parametrize("end", ["close", "reset"])
@on_uvloop
async def test_a_request_that_dies_on_a_used_connection_is_sent_again_on_a_fresh_one(end: str) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(NO_CONTENT)
        await peer.request()
        if peer.number == 1 and end == "reset":
            peer.reset()
        elif peer.number == 2:
            await peer.send(NO_CONTENT)

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url, b"1") == 204
        assert await outcome(client, server.url, b"2") == 204
    assert server.requests == [b"1", b"2", b"2"]
    assert server.connections == 2


@on_uvloop
async def test_it_is_not_sent_a_third_time_nor_on_another_used_connection() -> None:
    gate = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        if peer.number <= 2:
            await gate.wait()
            await peer.send(NO_CONTENT)
            await peer.request()

    async with Misbehaving(script) as server, client_of() as client:
        results = Results(client, server.url)
        results.post(b"1")
        results.post(b"2")
        await eventually(lambda: len(server.requests) == 2)
        gate.set()
        await results.all()
        assert await outcome(client, server.url, b"3") == "reset"
    assert server.requests[2:] == [b"3", b"3"]
    assert server.connections == 3


@on_uvloop
async def test_a_connection_that_comes_free_does_not_take_a_request_that_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer_first, answer_second, dial_again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    served: list[tuple[int, bytes]] = []

    async def script(peer: Peer) -> None:
        while True:
            body = (await peer.request())[-1:]
            served.append((peer.number, body))
            if body == b"3" and peer.number == 1:
                return
            await {b"1": answer_first, b"2": answer_second}.get(body, answer_first).wait()
            await peer.send(NO_CONTENT)

    async with Misbehaving(script) as server, client_of() as client:
        results = Results(client, server.url)
        results.post(b"1")
        await eventually(lambda: served)
        results.post(b"2")
        await eventually(lambda: len(served) == 2)
        answer_first.set()
        await eventually(lambda: results.reported)
        dial = client._dialer.dial

        async def slow_dial(*args: Any) -> Any:
            await dial_again.wait()
            return await dial(*args)

        monkeypatch.setattr(client._dialer, "dial", slow_dial)
        results.post(b"3")
        await eventually(lambda: client.connections == 1)
        answer_second.set()
        await eventually(lambda: len(results.reported) == 2)
        dial_again.set()
        assert {result.status for result in await results.all()} == {204}
    assert served == [(1, b"1"), (2, b"2"), (1, b"3"), (3, b"3")]


@pytest.mark.parametrize("begin", [b"H", b"HTTP/1.1 20"])
@on_uvloop
async def test_it_is_not_sent_again_once_an_answer_began(begin: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(NO_CONTENT)
        await peer.request()
        await peer.send(begin)

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url, b"1") == 204
        assert await outcome(client, server.url, b"2") == "reset"
    assert server.requests == [b"1", b"2"]


@on_uvloop
async def test_it_is_not_sent_again_from_a_fresh_connection() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url) == "reset"
    assert len(server.requests) == 1


# Names, addresses and dials


def names(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[str]]) -> list[str]:
    """Lets names resolve so; returns the list of what is asked."""
    asked: list[str] = []

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(name)
        if name not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answers[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@on_uvloop
async def test_a_name_is_asked_for_once_whatever_the_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of() as client:
        asked = names(monkeypatch, {"receiver.test": ["127.0.0.1"]})
        results = Results(client, f"http://receiver.test:{server.port}/")
        for _ in range(20):
            results.post()
        await eventually(lambda: len(server.requests) == 20)
        gate.opened.set()
        await results.all()
        assert b"\r\nHost: receiver.test:" in server.heads[0]
    assert asked == ["receiver.test"]


@on_uvloop
async def test_an_answer_is_forgotten_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    closing = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    async with Misbehaving(answering(closing)) as server, client_of(dns_cache_s=0) as client:
        asked = names(monkeypatch, {"receiver.test": ["127.0.0.1"]})
        for _ in range(3):
            assert await outcome(client, f"http://receiver.test:{server.port}/") == 204
    assert asked == ["receiver.test"] * 3


@on_uvloop
async def test_a_name_that_does_not_exist_is_remembered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = names(monkeypatch, {})
    async with client_of() as client:
        for _ in range(3):
            assert await outcome(client, "http://nowhere.test/") == "dns_failed"
    assert asked == ["nowhere.test"]


@on_uvloop
async def test_a_name_server_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hanging.wait(30) and [])
    try:
        async with client_of(dns_timeout_s=0.05) as client:
            assert await outcome(client, "http://slow.test/") == "dns_failed"
    finally:
        hanging.set()


@on_uvloop
async def test_only_the_addresses_that_the_guard_passes_are_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding: whatever a name meant when the subscription was made, the socket's address is judged."""
    async with (
        Misbehaving(answering(NO_CONTENT)) as server,
        client_of(allow_private=False, allowed_networks=("127.0.0.2/32",)) as client,
    ):
        names(monkeypatch, {"mixed.test": ["10.0.0.1", "127.0.0.1"], "inside.test": ["127.0.0.1", "::1"]})
        assert await outcome(client, f"http://mixed.test:{server.port}/") == "address_denied"
        assert await outcome(client, f"http://inside.test:{server.port}/") == "address_denied"
        assert await outcome(client, server.url) == "address_denied"
    assert server.connections == 0


@on_uvloop
async def test_an_answer_in_part_denied_uses_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        Misbehaving(answering(NO_CONTENT)) as server,
        client_of(allow_private=False, allowed_networks=("127.0.0.1/32",)) as client,
    ):
        names(monkeypatch, {"mixed.test": ["169.254.169.254", "::ffff:10.0.0.1", "127.0.0.1"]})
        assert await outcome(client, f"http://mixed.test:{server.port}/") == 204


@on_uvloop
async def test_an_own_listener_is_not_dialled() -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server:
        async with client_of(own_listeners=(("127.0.0.1", server.port),)) as client:
            assert await outcome(client, server.url) == "address_denied"
        async with client_of(own_listeners=(("0.0.0.0", server.port),)) as client:
            assert await outcome(client, server.url) == "address_denied"
    assert server.connections == 0


@on_uvloop
async def test_the_next_address_is_tried_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        names(monkeypatch, {"both.test": ["::1", "127.0.0.9", "127.0.0.1"]})
        assert await outcome(client, f"http://both.test:{server.port}/") == 204


@on_uvloop
async def test_ipv6() -> None:
    async with Misbehaving(answering(NO_CONTENT), host="::1") as server, client_of() as client:
        assert await outcome(client, server.url) == 204
    assert f"Host: [::1]:{server.port}".encode() in server.heads[0]


@on_uvloop
async def test_nobody_listens() -> None:
    async with client_of() as client:
        assert await outcome(client, f"http://127.0.0.1:{free_port()}/") == "connect_failed"


@on_uvloop
async def test_a_listener_that_never_accepts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):  # the only place in its backlog
            async with client_of(connect_timeout_s=0.05) as client:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
                assert await outcome(client, url) == "connect_timeout"
                assert client.connections == 0


@on_uvloop
async def test_a_dead_origin_fails_all_that_wait_for_it() -> None:
    async with client_of(max_connecting=2) as client:
        results = Results(client, f"http://127.0.0.1:{free_port()}/")
        for _ in range(100):
            results.post()
        assert {result.reason for result in await results.all()} == {"connect_failed"}


@on_uvloop
async def test_a_shortage_of_files_here_is_no_fault_of_the_receiver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that cannot have a connection of their own wait for the ones there are."""
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        dialer = client._dialer
        dial, dials = dialer._connect_one, 0

        async def connect_one(address: str, port: int, seconds: float) -> socket.socket:
            nonlocal dials
            dials += 1
            if dials > 2:
                raise OSError(errno.EMFILE, "too many open files")
            return await dial(address, port, seconds)

        monkeypatch.setattr(dialer, "_connect_one", connect_one)
        results = Results(client, server.url)
        for _ in range(50):
            results.post()
        assert {result.status for result in await results.all()} == {204}
    assert server.connections == 2


@on_uvloop
async def test_the_deadline_counts_from_the_post_over_dns_and_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: hanging.wait(30) and [])
    try:
        async with client_of() as client:
            assert await outcome(client, "http://slow.test/", timeout_s=0.05) == "deadline_exceeded"
    finally:
        hanging.set()


# The end


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
        await eventually(lambda: client.connections == 0)


@on_uvloop
async def test_close_waits_for_what_is_outstanding() -> None:
    gate = Gate()
    async with Misbehaving(gate) as server, client_of() as client:
        results = Results(client, server.url)
        results.post()
        results.post()
        await eventually(lambda: len(server.requests) == 2)
        closing = asyncio.create_task(client.close(drain_s=20))
        await asyncio.sleep(0)
        results.post()
        gate.opened.set()
        await closing
        assert [result.reason or result.status for result in await results.all()] == [204, 204, "aborted"]
        await eventually(lambda: client.connections == 0)


@on_uvloop
async def test_close_gives_up_what_does_not_end() -> None:
    async with Misbehaving(Gate()) as server, client_of(max_connections=1) as client:
        results = Results(client, server.url)
        results.post()
        results.post()
        await eventually(lambda: server.requests)
        await client.close(drain_s=0.02)
        assert [result.reason for result in await results.all()] == ["aborted", "aborted"]


@on_uvloop
async def test_a_callback_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def on_done(result: PushResult) -> None:
        raise RuntimeError("engine trouble")

    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        with caplog.at_level(logging.CRITICAL + 1, "deliveries.push.request"):
            client.post(client.prepare(server.url), JSON, b"{}", 10, on_done)
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
                client.post(endpoint, JSON, b"{}", 10, on_done)

        client.post(endpoint, JSON, b"{}", 10, on_done)
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
        assert client.outstanding == client.connections == 2000
        gate.opened.set()
        assert {result.status for result in await results.all()} == {204}
    assert sorted(int(body) for body in server.requests) == list(range(2000))


def test_a_url_is_taken_apart_once() -> None:
    loop = asyncio.new_event_loop()
    try:
        client = PushClient(loop, options=ClientOptions())
        assert client.prepare("https://example.com/a") is client.prepare("https://example.com/a")
        with pytest.raises(BadEndpoint):
            client.prepare("http://example.com/a")
    finally:
        loop.close()
