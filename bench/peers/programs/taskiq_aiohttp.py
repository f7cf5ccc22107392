"""taskiq with aiohttp: an async task for each push, from a stream in Redis."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from taskiq import SmartRetryMiddleware, TaskiqEvents, TaskiqState
from taskiq_redis import RedisStreamBroker

from bench.peers.programs.lines import (
    CONCURRENCY,
    HEADERS,
    REDIS,
    TIMEOUT_SECONDS,
    URL,
    body_of,
    replace_process,
    serve_at_once,
)

# consumer_id: the stream from its beginning, so that nothing is lost that was sent before the worker was there.
broker = RedisStreamBroker(f"unix://{REDIS}", consumer_id="0", max_connection_pool_size=CONCURRENCY + 8)
broker = broker.with_middlewares(SmartRetryMiddleware(default_retry_count=1_000, use_delay_exponent=True))


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def open_session(state: TaskiqState) -> None:
    connector = aiohttp.TCPConnector(limit=CONCURRENCY)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    state.session = aiohttp.ClientSession(connector=connector, timeout=timeout, raise_for_status=True)


@broker.task("push", retry_on_error=True)
async def push(url: str, body: str) -> None:
    async with broker.state.session.post(url, data=body.encode(), headers=HEADERS):
        pass


def start() -> None:
    options = ["--workers", "1", "--max-async-tasks", str(CONCURRENCY), "--max-prefetch", str(CONCURRENCY)]
    replace_process("taskiq", "worker", "bench.peers.programs.taskiq_aiohttp:broker", *options, "--log-level", "ERROR")


async def publish() -> None:
    await broker.startup()
    await serve_at_once(lambda numbers: asyncio.gather(*(push.kiq(URL, body_of(number)) for number in numbers)))


if __name__ == "__main__":
    start() if sys.argv[1] == "start" else asyncio.run(publish())
