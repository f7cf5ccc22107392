"""What every publishing program of a peer does: it reads lines of "FIRST COUNT" and publishes that many messages.

It answers "FIRST" once the peer has taken them. It runs in the peer's own environment, so only the standard library is
imported. The variables PEER_... say where things are: URL is the endpoint, REDIS the socket of a Redis of the peer's
own, PORT a free port, CONCURRENCY the number of requests that the peer may have outstanding. BODY is the body of a
push, with "@" for the message's number, and AUTHORIZATION its header.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence

URL = os.environ.get("PEER_URL", "")
REDIS = os.environ.get("PEER_REDIS", "")
PORT = int(os.environ.get("PEER_PORT", "0"))
CONCURRENCY = int(os.environ.get("PEER_CONCURRENCY", "1"))
BODY = os.environ.get("PEER_BODY", "")
HEADERS = {"Content-Type": "application/json", "Authorization": os.environ.get("PEER_AUTHORIZATION", "")}
#: The time limit of a push.
TIMEOUT_SECONDS = 10


def body_of(number: int) -> str:
    return BODY.replace("@", str(number))


def replace_process(*words: str, **environment: str) -> None:
    """Become `python -m WORDS`, so that the peer is no child of a process that isn't its own."""
    os.execve(sys.executable, [sys.executable, "-m", *words], os.environ | environment)


def serve(publish: Callable[[Sequence[int]], object]) -> None:
    """Publish one line after the other."""
    for line in sys.stdin:
        first, count = map(int, line.split())
        publish(range(first, first + count))
        print(first, flush=True)


async def serve_at_once(publish: Callable[[Sequence[int]], Awaitable[object]]) -> None:
    """Publish lines as they come, so that several are on their way."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def publish_and_answer(first: int, count: int) -> None:
        await publish(range(first, first + count))
        print(first, flush=True)

    async with asyncio.TaskGroup() as group:
        while line := await reader.readline():
            group.create_task(publish_and_answer(*map(int, line.split())))
