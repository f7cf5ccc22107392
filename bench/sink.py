"""An endpoint for benchmarks: answers 204 at once, after a delay or never, and notes when each message came.

`python -m bench.sink PORT DELAY_SECONDS COUNTERS ARRIVALS NAMES`; a negative delay is "never". COUNTERS is a file of
three 64-bit numbers that is kept up to date: requests received, requests held now, and messages received, each counted
once. At SIGTERM lines of
"<name> <monotonic ns>" go to ARRIVALS; the name of a message is the group of the regular expression NAMES.
Several sinks may share a port.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import re
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import cast

import uvloop

from bench.processes import answers, process, wait_until

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
MESSAGE_ID = r'"messageId":"([^"]*)'
LENGTH = b"content-length:"
COUNTERS = struct.Struct("=qqq")


class Tally:
    """The counters of a process' sinks, in a file that other processes can read at any time."""

    def __init__(self, path: Path, names: str) -> None:
        self.name = re.compile(names.encode())
        path.write_bytes(bytes(COUNTERS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), COUNTERS.size)
        self.received = self.held = 0
        self.arrivals: list[tuple[bytes, int]] = []
        self._names: set[bytes] = set()

    def note(self, name: bytes, at: int) -> None:
        self.arrivals.append((name, at))
        self._names.add(name)
        self.change(received=1, held=1)

    def change(self, *, received: int, held: int) -> None:
        self.received += received
        self.held += held
        COUNTERS.pack_into(self._map, 0, self.received, self.held, len(self._names))


class Endpoint(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self, tally: Tally, delay_seconds: float) -> None:
        self._tally = tally
        self._delay = delay_seconds
        self._held = 0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        at = monotonic_ns()
        data = self._buffer + data
        if not is_whole(data):
            self._buffer = data
            return
        self._buffer = b""
        name = self._tally.name.search(data)
        assert name is not None, data
        self._held += 1
        self._tally.note(name[1], at)
        if self._delay > 0:
            asyncio.get_running_loop().call_later(self._delay, self._answer)
        elif self._delay == 0:
            self._answer()

    def _answer(self) -> None:
        if self._held:
            self._held -= 1
            self._tally.change(received=0, held=-1)
            self._transport.write(ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tally.change(received=0, held=-self._held)
        self._held = 0


def is_whole(data: bytes) -> bool:
    """Return whether a request has arrived completely."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = data[:end].lower()
    start = head.index(LENGTH) + len(LENGTH)
    length = int(head[start:].partition(b"\r\n")[0])
    return len(data) >= end + 4 + length


class Sinks:
    """Sink processes on one port."""

    def __init__(self, port: int, counters: list[Path], arrivals: list[Path]) -> None:
        self.url = f"http://127.0.0.1:{port}/push"
        self._counters = counters
        self._arrivals = arrivals

    def received(self) -> int:
        return sum(COUNTERS.unpack(path.read_bytes())[0] for path in self._counters)

    def held(self) -> int:
        return sum(COUNTERS.unpack(path.read_bytes())[1] for path in self._counters)

    def messages(self) -> int:
        """Return how many messages have arrived at least once, if there is one sink process."""
        return sum(COUNTERS.unpack(path.read_bytes())[2] for path in self._counters)

    def arrivals(self) -> dict[str, int]:
        """Return the time of each message's first arrival. Call this after the processes have ended."""
        first_arrivals: dict[str, int] = {}
        for path in self._arrivals:
            for line in path.read_text().splitlines():
                name, at = line.split()
                first_arrivals[name] = min(int(at), first_arrivals.get(name, int(at)))
        return first_arrivals


@contextmanager
def sinks(
    folder: Path, *, port: int, delay_seconds: float, processes: int = 1, names: str = MESSAGE_ID
) -> Iterator[Sinks]:
    with ExitStack() as stack:
        counters = [folder / f"sink-{port}-{number}" for number in range(processes)]
        arrivals = [path.with_suffix(".arrivals") for path in counters]
        for counter, arrival in zip(counters, arrivals, strict=True):
            words = [str(port), str(delay_seconds), str(counter), str(arrival), names]
            stack.enter_context(process([sys.executable, "-m", "bench.sink", *words]))
        wait_until(lambda: answers(port) and all(path.exists() for path in counters), seconds=20, what="the sink")
        yield Sinks(port, counters, arrivals)


async def serve(port: int, delay_seconds: float, tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    await loop.create_server(lambda: Endpoint(tally, delay_seconds), sock=listener, backlog=4096)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()


def main() -> None:
    port, delay_seconds, counters = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    tally = Tally(counters, names=sys.argv[5])
    uvloop.run(serve(port, delay_seconds, tally))
    Path(sys.argv[4]).write_text("".join(f"{name.decode()} {at}\n" for name, at in tally.arrivals))
    # Requests that are still held would only get an error.
    os._exit(0)


if __name__ == "__main__":
    main()
