"""Measures many StreamingPull streams of one gRPC process, a row of bench/limits.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import grpc.aio

from bench.capacity import running
from bench.processes import family, rss_mb, used_seconds, wait_until

if TYPE_CHECKING:
    from bench.stand import Stand

SUBSCRIPTIONS = 10
#: How long the streams settle before they are watched, and how long they are watched.
QUIET_SECONDS, IDLE_SECONDS = 5, 10
Figures = dict[str, Any]


def streams(count: int) -> Figures:
    """Hold streams open on ten subscriptions, and send a message to each stream."""
    with running(0, workers=0, PUSHHUB_GRPC_STREAMS=str(count)) as (deployment, _, _), deployment.grpc() as server:
        for number in range(SUBSCRIPTIONS):
            deployment.subscribe("", name=f"stream-{number}")
        figures = asyncio.run(_hold_streams(deployment, server.pid, count))
        return figures | {"grpc server, MB": round(rss_mb(*family(server.pid)))}


async def _hold_streams(deployment: Stand, pid: int, count: int) -> Figures:
    from bench.pulling import Request, Response
    from bench.stand import subscription

    pulled = asyncio.Queue[int]()

    async def pull(channel: grpc.aio.Channel, number: int) -> None:
        call = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )()
        name = subscription(f"stream-{number % SUBSCRIPTIONS}")
        await call.write(Request(subscription=name, stream_ack_deadline_seconds=60, max_outstanding_messages=10))
        async for response in call:
            await call.write(Request(ack_ids=[message.ack_id for message in response.received_messages]))
            pulled.put_nowait(len(response.received_messages))

    messages = count // SUBSCRIPTIONS
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{deployment.grpc_port}"
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options)) for _ in range(10)
        ]
        tasks = [asyncio.create_task(pull(channels[number % 10], number)) for number in range(count)]
        stack.push_async_callback(_cancel, tasks)
        await asyncio.sleep(QUIET_SECONDS)
        spent, spent_of_redis = used_seconds(*family(pid)), used_seconds(deployment.redis_pid)
        await asyncio.sleep(IDLE_SECONDS)
        idle, idle_redis = used_seconds(*family(pid)) - spent, used_seconds(deployment.redis_pid) - spent_of_redis
        refused = "not refused"
        try:
            await pull(channels[0], count)
        except grpc.aio.AioRpcError as error:
            refused = f"{error.code().name}: {error.details()}"
        began, received = time.monotonic(), 0
        await asyncio.to_thread(deployment.publish, messages)
        while received < messages * SUBSCRIPTIONS:
            received += await asyncio.wait_for(pulled.get(), 60)
        await asyncio.to_thread(wait_until, lambda: not deployment.left(), seconds=60, what="the last ack")
        took = time.monotonic() - began
        ended = sum(task.done() for task in tasks)
    return {
        "open": count - ended,
        "a core, when idle": round(idle / IDLE_SECONDS, 3),
        "a core of Redis, when idle": round(idle_redis / IDLE_SECONDS, 3),
        "messages/s": round(received / took),
        "beyond": f"{refused} The limit is 5,000 by default.",
    }


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
