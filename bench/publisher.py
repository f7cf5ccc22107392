"""Publishes over REST at a steady rate whatever the answers take, and notes when each was sent and answered.

`python -m bench.publisher PORT RATE SECONDS CONNECTIONS FILE` writes a line of "<message id> <due ns> <answered ns>"
for each answer, on the clock of `time.monotonic_ns`. A publish that is due while all connections are busy goes out as
soon as one is free, and counts from when it was due. With BATCH and SIZE at the end, a publish has so many messages
with data of so many random bytes, and the line the id of the first. With TOPICS after them, publishes go to so many
topics in turn, and with KEYS after that, they have so many ordering keys in turn.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import deque
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from time import monotonic_ns
from typing import TextIO, cast

import uvloop

from bench.message import HELLO, publish_body, topic_names

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
        self._transport.write(next(self._load.requests))

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

    def __init__(self, port: int, bodies: Sequence[bytes], *, topics: int, notes: TextIO) -> None:
        lines = f"Host: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: "
        self.requests = cycle(
            f"POST /v1/{name}:publish HTTP/1.1\r\n{lines}{len(body)}\r\n\r\n".encode() + body
            for body in bodies
            for name in topic_names(topics)
        )
        self.free: deque[Connection] = deque()
        self.waiting: deque[int] = deque()
        self.count = 0
        self.failed = ""
        self._notes = notes

    def answered(self, connection: Connection, head: bytes, body: bytes, *, due: int, at: int) -> None:
        if not head.startswith(b"HTTP/1.1 200"):
            self.failed = (head + b"\n" + body).decode(errors="replace")[:300]
            return
        message_id = body.partition(KEY)[2].partition(b'"')[0].decode()
        self._notes.write(f"{message_id} {due} {at}\n")
        self.count += 1
        self.free.append(connection)
        self.pump()

    def pump(self) -> None:
        while self.free and self.waiting:
            self.free.popleft().send(self.waiting.popleft())


async def run(load: Load, port: int, rate: int, seconds: int, connections: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
    began = monotonic_ns() + 200_000_000
    for number in range(rate * seconds):
        if load.failed:
            break
        due = began + number * 1_000_000_000 // rate
        wait = (due - monotonic_ns()) / 1e9
        if wait > 0:
            await asyncio.sleep(wait)
        load.waiting.append(due)
        load.pump()
    deadline = loop.time() + 20
    while load.count < rate * seconds and not load.failed and loop.time() < deadline:
        await asyncio.sleep(0.05)
    if load.failed or load.count < rate * seconds:
        raise SystemExit(f"{load.count} of {rate * seconds} were answered; {load.failed}")


def main() -> None:
    port, rate, seconds, connections = map(int, sys.argv[1:5])
    given = [int(word) for word in sys.argv[6:10]]
    batch, size, topics, keys = given + [1, len(HELLO), 1, 0][len(given) :]
    data = random.Random(0).randbytes(size)
    names = [f"key-{number}" for number in range(keys)] or [""]
    bodies = [publish_body(batch, data=data, key=name) for name in names]
    with Path(sys.argv[5]).open("w", buffering=1) as notes:
        uvloop.run(run(Load(port, bodies, topics=topics, notes=notes), port, rate, seconds, connections))


if __name__ == "__main__":
    main()
