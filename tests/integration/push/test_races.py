"""Connections that die under a request, or before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.integration.client.push_client import Results, client_of, connections_of, eventually, on_uvloop, outcome
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering


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
        await eventually(lambda: connections_of(client) == 1)
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


@on_uvloop
async def test_a_connection_that_dies_before_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        dial = client._dialer.dial

        async def dial_and_lose(*args: Any) -> Any:
            connection = await dial(*args)
            connection.discard()
            await eventually(lambda: connection._transport is None)
            return connection

        monkeypatch.setattr(client._dialer, "dial", dial_and_lose)
        assert await outcome(client, server.url) == "reset"
        assert connections_of(client) == 0
