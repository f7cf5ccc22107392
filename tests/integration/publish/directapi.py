"""A web server in the test's own process, which answers publish requests without Django where it can."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from deliveries.api.direct import DirectPublish
from deliveries.publish.writer import publish_writer
from pushhub.common.servers import listen
from pushhub.runtime.httpserver.limits import Limits
from pushhub.runtime.httpserver.requestthreads import RequestThreads
from pushhub.runtime.httpserver.server import HttpServer
from pushhub.wsgi import application
from tests.restapi import Answer, Api

LIMITS = Limits(head_seconds=30, body_seconds=30, idle_seconds=30, connections=0)


class DirectApi(Api):
    """Publishes over the server; every other call is that of Api."""

    def __init__(self, address: tuple[str, int], outcomes: list[str]) -> None:
        super().__init__()
        self.address = address
        #: How each request was answered: "direct", "given back" or "left".
        self.outcomes = outcomes

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        if not path.endswith(":publish"):
            return super().call(method, path, body, **headers)
        status, _, content = self.exchange(method, path, body, **headers)
        return Answer(status, orjson.loads(content))

    def exchange(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send a request; return the status, the header fields and the body of the answer."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        client = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            url = path if path.startswith("/") else self.root + path
            client.request(method, url, data, {"Content-Type": "application/json"} | headers)
            response = client.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            client.close()


class _Watched:
    """Records how requests are answered."""

    def __init__(self, direct: DirectPublish, outcomes: list[str]) -> None:
        self._direct = direct
        self._outcomes = outcomes

    def __call__(
        self,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        answer: Callable[[tuple[bytes, bytes] | None], None],
    ) -> bool:
        def watched(content: tuple[bytes, bytes] | None) -> None:
            self._outcomes.append("given back" if content is None else "direct")
            answer(content)

        is_taken = self._direct(target, headers, body, watched)
        if not is_taken:
            self._outcomes.append("left")
        return is_taken


@contextmanager
def direct_api(threads: int = 1) -> Iterator[DirectApi]:
    """Yield a caller of a server that runs in a thread of its own."""
    started, outcomes = threading.Event(), list[str]()
    addresses: list[tuple[str, int]] = []
    ends: list[Callable[[], None]] = []

    async def serve() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))
        with RequestThreads(threads) as request_threads, publish_writer(loop) as writer:
            direct = _Watched(DirectPublish(writer, application), outcomes)
            server = HttpServer(application, threads=request_threads, limits=LIMITS, files=1000, direct=direct)
            await server.start(listening := listen(("127.0.0.1", 0)))
            addresses.append(listening.getsockname())
            started.set()
            await stop.wait()
            await server.stop(seconds=5, linger_seconds=0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(60)
        yield DirectApi(addresses[0], outcomes)
    finally:
        for end in ends:
            end()
        thread.join(60)
