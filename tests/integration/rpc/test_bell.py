"""Streams that wait for messages each have a connection to Redis, however many there are."""

from __future__ import annotations

import asyncio

from deliveries.backlog.connection import client_of
from deliveries.rpc.bell import Bell

STREAMS = 150


def test_many_streams_wait_at_once(redis_url: str) -> None:
    client = client_of(redis_url)

    async def wait_all() -> None:
        bell = Bell(redis_url)
        waiting = [asyncio.create_task(bell.wait(number, seconds=1)) for number in range(STREAMS)]
        while not all(task.done() for task in waiting):
            counts.append(client.info("clients")["blocked_clients"])
            await asyncio.sleep(0.05)
        await bell._client.aclose()

    counts: list[int] = []
    asyncio.run(wait_all())
    assert max(counts) == STREAMS
