"""Publishing to a server, with as many requests at a time as come, each on a connection of its own that is kept."""

from __future__ import annotations

import asyncio
import re
from collections import deque

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STATUS = re.compile(rb"HTTP/1\.[01] (\d+)")


class Server:
    """A server at a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
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
        reader, writer = self._free.popleft() if self._free else await asyncio.open_connection("127.0.0.1", self._port)
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n{headers}\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        text = await reader.readexactly(int(LENGTH.search(answer)[1]))
        if STATUS.match(answer)[1] != b"200":
            raise SystemExit(f"{path} was answered {answer.decode()}{text.decode()}")
        if b"connection: close" in answer.lower():
            writer.close()
        else:
            self._free.append((reader, writer))
        return text
