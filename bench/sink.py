"""An endpoint for benchmarks: answers 204, at once or after a delay, and notes when each message came.

`python -m bench.sink PORT DELAY_SECONDS [FILE]`; at SIGTERM it writes "<message id> <monotonic ns>" lines to FILE.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
KEY = b'"messageId":"'


class Endpoint(asyncio.Protocol):
    """One connection; a request is small and comes in one read."""

    delay = 0.0
    arrivals: list[tuple[bytes, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        found = data.find(KEY)
        if found < 0:
            return
        start = found + len(KEY)
        self.arrivals.append((data[start : data.index(b'"', start)], time.monotonic_ns()))
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Endpoint, "127.0.0.1", port, backlog=8192)
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    server.close()


def main() -> None:
    Endpoint.delay = float(sys.argv[2])
    uvloop.run(serve(int(sys.argv[1])))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text("".join(f"{name.decode()} {at}\n" for name, at in Endpoint.arrivals))


if __name__ == "__main__":
    main()
