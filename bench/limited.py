"""An endpoint for benchmarks that refuses requests: above a limit of concurrent ones, and a random share of the rest.

`python -m bench.limited PORT PLACES DELAY_SECONDS NACKED COUNTERS` answers at most PLACES requests at a time with 204,
each after the delay, and every other request with 503 at once. It refuses the share NACKED of the requests at random,
also after the delay. COUNTERS is a file of two 64-bit numbers that is kept up to date: acks and nacks.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import random
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import uvloop

from bench.processes import answers, process, wait_until
from bench.sink import ANSWER, is_whole

REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
COUNTERS = struct.Struct("=qq")
#: How far a delay strays from its mean, to either side; requests that all take the same time would come in waves.
SPREAD = 0.2
SEED = 1


class Counts(NamedTuple):
    """What an endpoint has answered so far."""

    acked: int
    nacked: int


class Places:
    """The requests that the endpoint works on, and the counts of its answers."""

    def __init__(self, places: int, *, delay_seconds: float, nacked: float, counters: Path) -> None:
        counters.write_bytes(bytes(COUNTERS.size))
        with counters.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), COUNTERS.size)
        self._free = places
        self._delay = delay_seconds
        self._nacked = nacked
        self._dice = random.Random(SEED)
        self._counts = [0, 0]

    def serve(self, transport: asyncio.Transport) -> None:
        if not self._free:
            self._answer(transport, is_ack=False)
            return
        self._free -= 1
        delay = self._delay * (1 - SPREAD + 2 * SPREAD * self._dice.random())
        is_ack = self._dice.random() >= self._nacked
        asyncio.get_running_loop().call_later(delay, self._end, transport, is_ack)

    def _end(self, transport: asyncio.Transport, is_ack: bool) -> None:
        self._free += 1
        self._answer(transport, is_ack=is_ack)

    def _answer(self, transport: asyncio.Transport, *, is_ack: bool) -> None:
        self._counts[not is_ack] += 1
        COUNTERS.pack_into(self._map, 0, *self._counts)
        if not transport.is_closing():
            transport.write(ANSWER if is_ack else REFUSAL)


class Connection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if is_whole(self._buffer):
            self._buffer = b""
            self._places.serve(self._transport)


class Limited:
    """An endpoint in a process of its own."""

    def __init__(self, port: int, counters: Path) -> None:
        self.url = f"http://127.0.0.1:{port}/push"
        self._counters = counters

    def counts(self) -> Counts:
        return Counts(*COUNTERS.unpack(self._counters.read_bytes()))


@contextmanager
def limited(folder: Path, *, port: int, places: int, delay_seconds: float, nacked: float = 0.0) -> Iterator[Limited]:
    """Start an endpoint, and stop it at the end of the block."""
    counters = folder / f"limited-{port}"
    words = [str(port), str(places), str(delay_seconds), str(nacked), str(counters)]
    with process([sys.executable, "-m", "bench.limited", *words]):
        wait_until(lambda: answers(port) and counters.exists(), seconds=20, what="the endpoint")
        yield Limited(port, counters)


async def serve(port: int, places: Places) -> None:
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(places), host="127.0.0.1", port=port, backlog=4096)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def main() -> None:
    port, places, delay_seconds, nacked = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    counters = Path(sys.argv[5])
    uvloop.run(serve(port, Places(places, delay_seconds=delay_seconds, nacked=nacked, counters=counters)))
    # Requests that are still being worked on get no answer.
    os._exit(0)


if __name__ == "__main__":
    main()
