"""An HTTP/1.1 server for a WSGI application, in which only complete requests occupy a thread.

The event loop reads requests and writes responses. Everything that a client can occupy is limited: the time for a head,
for a body and between requests, the sizes of heads and bodies, and per address the connections and the bytes of bodies.
A thread runs the application once the body of a request is complete and it is the turn of its tenant. It takes the
next request while the client is still receiving the response.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from pushhub.common.servers import BACKLOG
from pushhub.runtime.httpserver.connection import HttpConnection
from pushhub.runtime.httpserver.limits import ByteBudget, Connections, Limits
from pushhub.runtime.httpserver.requests import Request
from pushhub.runtime.httpserver.requestthreads import RequestThreads
from pushhub.runtime.httpserver.responses import Direct, Response

#: The memory for bodies of all clients, and of one address.
BODIES_BYTES = 256 * 1024 * 1024
BODIES_BYTES_PER_ADDRESS = 128 * 1024 * 1024
#: The time between two looks for connections whose deadline has passed.
SWEEP_SECONDS = 0.25
#: How long a server that stops keeps idle connections: a request may be on its way, and a client doesn't repeat a POST.
LINGER_SECONDS = 1.0

#: A WSGI application.
Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class HttpServer:
    """Listens on one address, and has what its connections share."""

    def __init__(
        self,
        application: Application,
        *,
        threads: RequestThreads,
        limits: Limits,
        files: int,
        direct: Direct | None = None,
    ) -> None:
        self.limits = limits
        self.threads = threads
        self.direct = direct
        self.bodies = ByteBudget(most=BODIES_BYTES, most_per_address=BODIES_BYTES_PER_ADDRESS)
        self.addresses = Connections(most_per_address=limits.connections, files=files)
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self._application = application
        self._sweeping: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpConnection(self, loop), sock=listening, backlog=BACKLOG)
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self, *, seconds: float, linger_seconds: float = LINGER_SECONDS) -> None:
        """Accept no more connections, wait up to `seconds` for the current requests, and abort what is left.

        A request that comes on an idle connection within `linger_seconds` is answered, and the connection ends with it.
        """
        assert self._server is not None
        assert self._sweeping is not None
        self._server.close()
        self.is_stopping = True
        began = time.monotonic()
        await self._wait_for_connections(until=began + linger_seconds)
        for connection in tuple(self.connections):
            connection.close_when_done()
        await self._wait_for_connections(until=began + seconds)
        for connection in tuple(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)
        self._sweeping.cancel()

    async def _wait_for_connections(self, *, until: float) -> None:
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(0.02)

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """Run `work`, which is short, in a thread."""
        asyncio.get_running_loop().run_in_executor(None, work, *arguments)

    def call(self, environ: dict[str, Any], request: Request) -> Response:
        """Run the application. Called in a thread."""
        response = Response(request)
        body = self._application(environ, response.start)
        response.chunks = iter(body)
        response.close = getattr(body, "close", response.close)
        return response

    async def _sweep(self) -> None:
        """End the connections whose deadline has passed. A regular look at each is cheaper than a timer per request."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for connection in [connection for connection in self.connections if connection.deadline < now]:
                connection.end_overdue()
