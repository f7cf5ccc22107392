"""A push endpoint for tests: threads, keep-alive HTTP/1.1, answers by script, records of every request."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.ports import wait_for


@dataclass(frozen=True)
class Request:
    """One request as it came in. `connection` tells keep-alive connections apart; `time` is time.monotonic()."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    time: float

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Answer:
    """What to answer: first any interim statuses, then `status`; or, with `hang_up`, nothing at all.

    `status=102` sends the bare 102 and closes, which is how a final 102 looks on the wire.
    """

    status: int = 204
    delay_seconds: float = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    interim: tuple[int, ...] = ()
    hang_up: bool = False


#: A status, an answer, or a function that returns one for a request.
Script = int | Answer | Callable[[Request], "int | Answer"]


class Receiver:
    """The endpoint. Each request gets the next of `answers`, and `default` once they are used up.

    Unless it `keeps` the requests, `requests` stays empty.
    """

    def __init__(self, default: Script = 204, *, keeps: bool = True) -> None:
        self.default = default
        self._keeps = keeps
        self.requests: list[Request] = []
        self.outstanding = 0
        self.most_outstanding = 0
        self._answers: list[Script] = []
        self._connections = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def connections(self) -> int:
        """Return how many connections were opened, with or without a request."""
        return self._connections

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/push"

    def script(self, answers: Iterable[Script]) -> None:
        """Answer the next requests with these, in order of arrival."""
        with self._lock:
            self._answers.extend(answers)

    def wait(self, count: int, *, timeout_seconds: float = 600) -> list[Request]:
        """Return the requests so far, once there are at least `count` of them."""
        wait_for(
            lambda: len(self.requests) >= count,
            timeout_seconds=timeout_seconds,
            what=f"request number {count} (there are {len(self.requests)})",
        )
        return list(self.requests)

    def _decide(self, request: Request) -> Answer:
        with self._lock:
            if self._keeps:
                self.requests.append(request)
            script = self._answers.pop(0) if self._answers else self.default
        answer = script(request) if callable(script) else script
        return Answer(status=answer) if isinstance(answer, int) else answer

    def _opened(self) -> int:
        with self._lock:
            self._connections += 1
            return self._connections

    def _count(self, change: int) -> None:
        with self._lock:
            self.outstanding += change
            self.most_outstanding = max(self.most_outstanding, self.outstanding)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """One connection of the receiver."""

            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                self.connection_number = receiver._opened()

            def do_POST(self) -> None:
                receiver._count(+1)
                try:
                    answer = receiver._decide(self._request())
                    self._send(answer)
                except OSError:
                    self.close_connection = True  # the client gave up waiting
                finally:
                    receiver._count(-1)

            do_GET = do_PUT = do_POST  # noqa: N815

            def _request(self) -> Request:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                return Request(self.command, self.path, headers, body, self.connection_number, time.monotonic())

            def _send(self, answer: Answer) -> None:
                if answer.delay_seconds:
                    receiver._stopping.wait(answer.delay_seconds)
                for status in (*answer.interim, *([102] if answer.status == 102 else [])):
                    self.wfile.write(f"HTTP/1.1 {status} Interim\r\n\r\n".encode())
                if answer.hang_up or answer.status == 102:
                    self.close_connection = True
                    return
                self.send_response_only(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.status not in (204, 304):
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if answer.status not in (204, 304):
                    self.wfile.write(answer.body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing, as the receiver records its requests."""

        return Handler


class _Server(ThreadingHTTPServer):
    """Its threads may outlive the test by the length of one answer, and nobody waits for them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """End the keep-alive connections, whose threads then close them."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up in the middle, which some tests do on purpose."""
