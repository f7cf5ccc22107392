"""How the push client opens connections: DNS, the address guard, and failures."""

from __future__ import annotations

import errno
import socket
import threading
from typing import Any

import pytest

from tests.integration.client.push_client import (
    Gate,
    Results,
    client_of,
    connections_of,
    eventually,
    on_uvloop,
    outcome,
)
from tests.misbehaving import NO_CONTENT, Misbehaving, answering
from tests.ports import free_port


def names(monkeypatch: pytest.MonkeyPatch, answers: dict[str, list[str]]) -> list[str]:
    """Replace the system's resolver, and return the list of names that are looked up."""
    asked: list[str] = []

    def getaddrinfo(name: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(name)
        if name not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in answers[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


@on_uvloop
async def test_a_name_is_looked_up_once_whatever_the_number_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_a_cached_address_expires(monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Against DNS rebinding, the socket's address is checked, whatever the name resolved to at creation."""
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
async def test_if_some_addresses_are_denied_the_others_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        Misbehaving(answering(NO_CONTENT)) as server,
        client_of(allow_private=False, allowed_networks=("127.0.0.1/32",)) as client,
    ):
        names(monkeypatch, {"mixed.test": ["169.254.169.254", "::ffff:10.0.0.1", "127.0.0.1"]})
        assert await outcome(client, f"http://mixed.test:{server.port}/") == 204


@on_uvloop
async def test_a_listener_of_pushhub_itself_is_not_dialled() -> None:
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
async def test_source_addresses_are_used_in_turn() -> None:
    closing = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    sources = ("127.0.0.2", "::1", "127.0.0.3")
    async with Misbehaving(answering(closing)) as server, client_of(source_addresses=sources) as client:
        for _ in range(4):
            assert await outcome(client, server.url) == 204
    assert [peer.address for peer in server.peers] == ["127.0.0.2", "127.0.0.3"] * 2


@on_uvloop
async def test_a_port_without_a_listener() -> None:
    async with client_of() as client:
        assert await outcome(client, f"http://127.0.0.1:{free_port()}/") == "connect_failed"


@on_uvloop
async def test_a_listener_that_never_accepts() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname()):  # takes the only place in the listener's backlog
            async with client_of(connect_timeout_s=0.05) as client:
                url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
                assert await outcome(client, url) == "connect_timeout"
                assert connections_of(client) == 0


@on_uvloop
async def test_a_dead_origin_fails_all_waiting_requests() -> None:
    async with client_of(max_connecting=2) as client:
        results = Results(client, f"http://127.0.0.1:{free_port()}/")
        for _ in range(100):
            results.post()
        assert {result.reason for result in await results.all()} == {"connect_failed"}


@on_uvloop
async def test_a_shortage_of_local_files_is_not_the_receivers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that cannot have new connections wait for the existing ones."""
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
