"""Publishing to a server, on connections that are kept where the server keeps them."""

from __future__ import annotations

import asyncio
import re
from collections import deque

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
#: As a client's pool has; moto's server refuses more than some hundred at once.
CONNECTIONS = 32
STATUS = re.compile(rb"HTTP/1\.[01] (\d+)")


class Server:
    """A server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def wait(self) -> None:
        """Wait until the server listens."""
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return

    async def send(self, method: str, path: str, body: bytes, headers: str = "Content-Type: application/json") -> bytes:
        """Return the body of the answer; raises SystemExit unless its status is 200."""
        async with self._room:
            return await self._exchange(f"{method} {path}", body, headers)

    async def _exchange(self, what: str, body: bytes, headers: str) -> bytes:
        reader, writer = self._free.popleft() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        head = f"{what} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{headers}\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        text = await reader.readexactly(int(LENGTH.search(answer)[1]))
        if STATUS.match(answer)[1] != b"200":
            raise SystemExit(f"{what} was answered {answer.decode()}{text.decode()}")
        if b"connection: close" in answer.lower():
            writer.close()
        else:
            self._free.append((reader, writer))
        return text
