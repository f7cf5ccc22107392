"""Publishes over REST at a steady rate whatever the answers take, and notes when each was sent and answered.

`python -m bench.publisher PORT RATE SECONDS CONNECTIONS FILE` writes lines of "<message id> <due ns> <answered ns>", on
the clock of `time.monotonic_ns`. A publish that is due while all connections are busy goes out as soon as one is free,
and counts from when it was due. With BATCH and SIZE at the end, a publish has so many messages with data of so many
random bytes, and the line the id of the first.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from pathlib import Path
from time import monotonic_ns
from typing import cast

import uvloop

from bench.message import HELLO, TOPIC, publish_body

KEY = b'"messageIds":["'
LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    """A keep-alive connection that carries one publish at a time."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._due = 0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._load.free.append(self)

    def send(self, due: int) -> None:
        self._due = due
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        at = monotonic_ns()
        data = self._buffer + data
        head, end_of_head, body = data.partition(b"\r\n\r\n")
        if not end_of_head or len(body) < int(head.lower().partition(LENGTH)[2].partition(b"\r\n")[0]):
            self._buffer = data
            return
        self._buffer = b""
        self._load.answered(self, head, body, due=self._due, at=at)


class Load:
    """Send the publishes that are due."""

    def __init__(self, port: int, body: bytes) -> None:
        self.request = (
            f"POST /v1/{TOPIC}:publish HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        self.free: deque[Connection] = deque()
        self.waiting: deque[int] = deque()
        self.lines: list[str] = []
        self.failed = ""

    def answered(self, connection: Connection, head: bytes, body: bytes, *, due: int, at: int) -> None:
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed = (head + b"\n" + body).decode(errors="replace")[:300]
            return
        message_id = body.partition(KEY)[2].partition(b'"')[0].decode()
        self.lines.append(f"{message_id} {due} {at}\n")
        self.free.append(connection)
        self.pump()

    def pump(self) -> None:
        while self.free and self.waiting:
            self.free.popleft().send(self.waiting.popleft())


async def run(port: int, rate: int, seconds: int, connections: int, body: bytes) -> list[str]:
    loop = asyncio.get_running_loop()
    load = Load(port, body)
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
    began = monotonic_ns() + 200_000_000
    for number in range(rate * seconds):
        due = began + number * 1_000_000_000 // rate
        wait = (due - monotonic_ns()) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)
        load.waiting.append(due)
        load.pump()
    deadline = loop.time() + 20
    while len(load.lines) < rate * seconds and not load.failed and loop.time() < deadline:
        await asyncio.sleep(0.05)
    if load.failed or len(load.lines) < rate * seconds:
        raise SystemExit(f"{len(load.lines)} of {rate * seconds} were answered; {load.failed}")
    return load.lines


def main() -> None:
    port, rate, seconds, connections = map(int, sys.argv[1:5])
    batch, size = map(int, sys.argv[6:8] or (1, len(HELLO)))
    body = publish_body(batch, data=random.Random(0).randbytes(size))
    Path(sys.argv[5]).write_text("".join(uvloop.run(run(port, rate, seconds, connections, body))))


if __name__ == "__main__":
    main()
