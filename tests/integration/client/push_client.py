"""Helpers for the tests of the push client."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from deliveries.client.client import ClientOptions, Headers, PushClient, PushResult
from tests.misbehaving import NO_CONTENT, Peer

JSON = [("Content-Type", "application/json")]
#: Longer than any passing test takes.
PATIENCE_SECONDS = 20.0


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on its own uvloop, as the push worker does."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        uvloop.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_SECONDS * 2))

    return run


@asynccontextmanager
async def client_of(*, clock: Callable[[], float] = time.monotonic, **options: Any) -> AsyncIterator[PushClient]:
    """Yield a client that may push to loopback over http; `options` are ClientOptions.

    Without a `ca_file` it doesn't read the system's certificates, which takes longer than most tests over http, and so
    verifies none.
    """
    usual = {"allow_http": True, "allow_private": True, "tick_s": 0.01, "tls_verify": "ca_file" in options}
    chosen = ClientOptions(**{**usual, **options})
    client = PushClient(asyncio.get_running_loop(), options=chosen, clock=clock)
    try:
        yield client
    finally:
        await client.close()
        assert client.outstanding == 0


def connections_of(client: PushClient) -> int:
    """Return how many connections a client has open."""
    return sum(len(pool._open) for pool in client._pools.values())


class Results:
    """Posts and collects the results; fails if a request is reported twice."""

    def __init__(self, client: PushClient, url: str) -> None:
        self.client = client
        self.endpoint = client.prepare(url, headers=JSON)
        self.reported: dict[int, PushResult] = {}
        self.order: list[int] = []
        self._posted = 0

    def post(
        self,
        body: bytes = b"{}",
        *,
        timeout_s: float = PATIENCE_SECONDS,
        headers: Headers = (),
        may_begin: Callable[[], bool] | None = None,
    ) -> Any:
        number = self._posted
        self._posted += 1

        def on_done(result: PushResult) -> None:
            assert number not in self.reported, "reported twice"
            self.reported[number] = result
            self.order.append(number)

        return self.client.post(
            self.endpoint, body, headers=headers, timeout_s=timeout_s, may_begin=may_begin, on_done=on_done
        )

    async def all(self) -> list[PushResult]:
        await eventually(lambda: len(self.reported) == self._posted)
        return [self.reported[number] for number in range(self._posted)]


async def push(client: PushClient, url: str, body: bytes = b"{}", *, timeout_s: float = PATIENCE_SECONDS) -> PushResult:
    """Post, and return the result."""
    results = Results(client, url)
    results.post(body, timeout_s=timeout_s)
    return (await results.all())[0]


async def outcome(
    client: PushClient, url: str, body: bytes = b"{}", *, timeout_s: float = PATIENCE_SECONDS
) -> int | str:
    """Post, and return the reason of a failure or the status."""
    result = await push(client, url, body, timeout_s=timeout_s)
    assert (result.status == 0) == bool(result.reason)
    assert result.latency_ms >= 0
    return str(result.reason) or result.status


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


class Gate:
    """A server script that answers once the test opens the gate."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, peer: Peer) -> None:
        while True:
            await peer.request()
            await self.opened.wait()
            await peer.send(NO_CONTENT)
