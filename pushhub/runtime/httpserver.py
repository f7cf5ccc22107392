"""An HTTP/1.1 server for a WSGI application, which gives a thread to complete requests only.

The event loop reads requests and writes answers, with a limit on everything a client can hold on to: the time for a
head, for a body and between requests, the sizes of both, the connections of an address and the bytes of its bodies. A
thread of the pool runs the application on a request whose body is there, and goes on to the next request while the
client still takes the answer.
"""

from __future__ import annotations

import asyncio
import http
import io
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from email.utils import formatdate
from functools import lru_cache, partial
from typing import Any, Protocol
from urllib.parse import unquote_to_bytes

import httptools

from pushhub.runtime.limits import ByteBudget, Connections, Limits, Reservation, client_of

logger = logging.getLogger(__name__)

#: Of a request line and its header fields.
HEAD_BYTES = 64 * 1024
#: A larger body is left unread: the application refuses it by its length.
BODY_BYTES = 11 * 1024 * 1024
#: A smaller body needs no reservation: it takes no more than the connection's own buffers.
SMALL_BODY_BYTES = 64 * 1024
BODIES_BYTES = 256 * 1024 * 1024
BODIES_BYTES_PER_ADDRESS = 128 * 1024 * 1024
#: A client that is slower than this, after the first seconds, is cut off.
MIN_BYTES_PER_SECOND = 8 * 1024
#: How much of an answer is made before the client must have taken some of it.
ANSWER_BYTES = 256 * 1024
#: How long the rest of a refused body is read and dropped, so that the client gets to see the answer.
DROP_SECONDS = 2.0
SWEEP_SECONDS = 0.25
MOST_CONNECTIONS = 10_000
#: Of the file limit, what is left for the database, Redis and files.
OTHER_FILES = 200

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
NEVER = float("inf")


class Direct(Protocol):
    """Answers some POST requests in the event loop, without a thread and without the application.

    The names of the header fields are in lower case. It takes a request by returning True, and calls `answer` in the
    event loop later: with the header fields and the body of a 200, or with None for a request that the application has
    to answer after all.
    """

    def __call__(
        self,
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        answer: Callable[[tuple[bytes, bytes] | None], None],
    ) -> bool: ...


class Request:
    """One request, as far as it has come."""

    __slots__ = (
        *("body", "expects", "headers", "is_admitted", "keep_alive", "length", "method", "reservation", "size"),
        *("target", "version"),
    )

    def __init__(self) -> None:
        self.target = b""
        #: With names in lower case.
        self.headers: list[tuple[bytes, bytes]] = []
        self.method = ""
        self.version = ""
        self.keep_alive = False
        self.body: list[bytes] = []
        self.size = 0
        #: By its Content-Length; None where it has none.
        self.length: int | None = None
        #: Whether the client waits for an interim answer before it sends the body.
        self.expects = False
        #: Whether there is room for the body, and what holds it.
        self.is_admitted = True
        self.reservation: Reservation | None = None

    def is_too_large(self) -> bool:
        return max(self.size, self.length or 0) > BODY_BYTES


class Answer:
    """What the application answered: the head, and a body that may still be in the making."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.status = 0
        self._status_text = ""
        self.headers: list[tuple[str, str]] = []
        self.chunks: Iterator[bytes] = iter(())
        self.close: Callable[[], None] = lambda: None
        self.is_chunked = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        """WSGI's start_response."""
        self.status, self._status_text, self.headers = int(status[:3]), status, headers
        return self._write

    @staticmethod
    def _write(data: bytes) -> None:
        raise NotImplementedError("the application must return its answer")

    def has_body(self) -> bool:
        return self._request.method != "HEAD" and self.status not in (204, 304)

    def head(self, *, keep_alive: bool, length: int | None) -> bytes:
        """The status line and header fields; `length` of the whole body, where it is known."""
        lines = [f"HTTP/1.1 {self._status_text}", *(f"{name}: {value}" for name, value in self.headers)]
        names = {name.lower() for name, _ in self.headers}
        if "content-length" not in names and self.status not in (204, 304):
            if length is not None and self.has_body():
                lines.append(f"Content-Length: {length}")
            elif self.has_body() and self._request.version == "1.1":
                self.is_chunked = True
                lines.append("Transfer-Encoding: chunked")
        if "date" not in names:
            lines.append(f"Date: {formatdate(usegmt=True)}")
        if not keep_alive:
            lines.append("Connection: close")
        elif self._request.version == "1.0":
            lines.append("Connection: keep-alive")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def has_end(self) -> bool:
        """Whether the client can tell where the answer ends, other than by the connection's end."""
        names = {name.lower() for name, _ in self.headers}
        return self.is_chunked or not self.has_body() or "content-length" in names

    def framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data


class HttpServer:
    """What the connections of one listening address share."""

    def __init__(
        self, application: Application, *, pool: Executor, limits: Limits, files: int, direct: Direct | None = None
    ) -> None:
        self.limits = limits
        self.direct = direct
        self.bodies = ByteBudget(most=BODIES_BYTES, most_per_address=BODIES_BYTES_PER_ADDRESS)
        most = max(min(MOST_CONNECTIONS, files - OTHER_FILES), 1)
        self.addresses = Connections(most_per_address=limits.connections, most=most)
        self.connections: set[HttpConnection] = set()
        self.is_stopping = False
        self._application = application
        self._pool = pool
        self._sweeping: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None

    async def start(self, **where: Any) -> None:
        """Listen on `host` and `port`, or on `sock`."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: HttpConnection(self, loop), backlog=2048, **where)
        self._sweeping = asyncio.create_task(self._sweep())

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self, *, seconds: float) -> None:
        """Accept nothing more, finish the requests that are under way, and close what then is left."""
        assert self._server is not None
        assert self._sweeping is not None
        self._server.close()
        self.is_stopping = True
        for connection in tuple(self.connections):
            connection.close_when_done()
        ends = time.monotonic() + seconds
        while self.connections and time.monotonic() < ends:
            await asyncio.sleep(0.02)
        for connection in tuple(self.connections):
            connection.abort()
        while self.connections:
            await asyncio.sleep(0)
        self._sweeping.cancel()

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        self._pool.submit(work, *arguments)

    def call(self, environ: dict[str, Any], request: Request) -> Answer:
        """Run the application, in a thread."""
        answer = Answer(request)
        made = self._application(environ, answer.start)
        answer.chunks = iter(made)
        answer.close = getattr(made, "close", answer.close)
        return answer

    async def _sweep(self) -> None:
        """End the connections whose deadline has passed. Looking at each is cheaper than a timer for each request."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for connection in [one for one in self.connections if one.deadline < now]:
                connection.out_of_time()


class HttpConnection(asyncio.Protocol):
    """One connection: reads a request, has it answered, and only then reads on."""

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._address = self._client = ""
        self._base_environ: dict[str, Any] = {}
        self._is_counted = False
        #: The request that is being read, and when its body began.
        self._reading: Request | None = None
        self._body_began = 0.0
        self._head_bytes = 0
        #: Requests that came with the one that is being answered.
        self._ready: deque[Request] = deque()
        self._answering: Request | None = None
        self._answer: Answer | None = None
        self._is_dropping = False
        self._can_write = True
        self._writing_began = 0.0
        self._written = 0
        self.deadline = NEVER

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        here = transport.get_extra_info("sockname") or ("", 0)
        self._address = str(peer[0])
        self._server.connections.add(self)
        self._client = client_of(self._address)
        self._is_counted = self._server.addresses.enter(self._client)
        if not self._is_counted:
            self._refuse(429, "Too many connections from this address.")
            self._transport.close()
            return
        self._base_environ = {
            "REMOTE_ADDR": self._address,
            "REMOTE_PORT": str(peer[1]),
            "SERVER_NAME": str(here[0]),
            "SERVER_PORT": str(here[1]),
            "SCRIPT_NAME": "",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.errors": sys.stderr,
            "wsgi.input_terminated": True,
            "wsgi.multithread": True,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
        }
        self.deadline = time.monotonic() + self._limits.head_seconds

    def data_received(self, data: bytes) -> None:
        if self._is_dropping:
            return
        if self._answering is not None:
            # Only now: to pause and resume costs two system calls, and most clients wait for their answer.
            self._transport.pause_reading()
        if self._reading is None:
            self._head_bytes = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._answering is not None:  # the request is answered as one that asks for nothing else
                self._answering.keep_alive = False
        except httptools.HttpParserError:
            self._misread(400, "The request is not valid HTTP/1.1.")
            return
        if self._reading is not None and not self._reading.method:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._misread(431, "The request's head is too large.")

    def eof_received(self) -> bool:
        """A client that sends no more may still wait for its answer."""
        last = self._last_read()
        if last is None:
            return False
        last.keep_alive = False
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._is_counted:
            self._server.addresses.leave(self._client)
        self._release(self._reading)
        for request in self._ready:
            self._release(request)
        if self._answer is not None and not self._can_write:
            self._release(self._answering)
            self._server.run(self._answer.close)
        self._transport = None
        self.deadline = NEVER

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        if self._answer is not None and self._answering is not None:
            self._server.run(self._produce, self._answer)

    # The parser's side

    def on_message_begin(self) -> None:
        self._reading = Request()
        if self._answering is None:
            self.deadline = time.monotonic() + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._reading is not None
        self._reading.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        request = self._reading
        assert request is not None
        if self._is_dropping:
            return
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        if not request.target.startswith(b"/"):
            request.target = _path_of(request.target)
        self._head_bytes = 0
        fields = dict(request.headers)
        if b"content-length" in fields:
            request.length = int(fields[b"content-length"])
        elif b"transfer-encoding" not in fields:
            return
        request.expects = fields.get(b"expect", b"").lower() == b"100-continue"
        if not request.is_too_large():
            self._reserve(request)
        elif self._answering is None:
            self._drop_body(request)

    def on_body(self, body: bytes) -> None:
        request = self._reading
        if request is None or self._is_dropping:
            return
        request.body.append(body)
        request.size += len(body)
        if request.is_too_large():
            if self._answering is None:
                self._drop_body(request)
        elif self._answering is None:
            self.deadline = self._body_began + self._limits.body_seconds + request.size / MIN_BYTES_PER_SECOND

    def on_message_complete(self) -> None:
        request, self._reading = self._reading, None
        if request is None or self._is_dropping:
            return
        if self._answering is None:
            self._begin(request)
        else:
            self._ready.append(request)

    # Bodies

    def _reserve(self, request: Request) -> None:
        """Read the body as soon as there is room for it among the others."""
        size = BODY_BYTES if request.length is None else request.length
        if size > SMALL_BODY_BYTES:
            request.reservation = Reservation(self._client, size, lambda: self._granted(request))
            request.is_admitted = self._server.bodies.reserve(request.reservation)
        if self._answering is None:
            self._read_body(request)

    def _granted(self, request: Request) -> None:
        request.is_admitted = True
        if self._answering is None and self._transport is not None:
            self._read_body(request)

    def _read_body(self, request: Request) -> None:
        self._body_began = time.monotonic()
        self.deadline = self._body_began + self._limits.body_seconds
        if not request.is_admitted:
            self._transport.pause_reading()
            return
        if request.expects and not request.body:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._transport.resume_reading()

    def _release(self, request: Request | None) -> None:
        if request is not None and request.reservation is not None:
            self._server.bodies.release(request.reservation)
            request.reservation = None

    def _drop_body(self, request: Request) -> None:
        """Answer without the body; the application knows it by its length."""
        request.length = max(request.size, request.length or 0)
        request.body.clear()
        request.keep_alive = False
        self._reading = None
        self._is_dropping = True
        self._begin(request)

    # Answers

    def _begin(self, request: Request) -> None:
        self._answering = request
        self.deadline = NEVER
        if not self._is_dropping and self._is_taken_directly(request):
            return
        self._server.run(self._work, request)

    def _is_taken_directly(self, request: Request) -> bool:
        direct = self._server.direct
        return (
            direct is not None
            and request.method == "POST"
            and request.keep_alive
            and request.version == "1.1"
            and request.size <= SMALL_BODY_BYTES
            and not self._server.is_stopping
            and direct(request.target, request.headers, b"".join(request.body), partial(self._answer_directly, request))
        )

    def _answer_directly(self, request: Request, answer: tuple[bytes, bytes] | None) -> None:
        if self._transport is None or self._answering is not request:
            return
        if answer is None:
            self._server.run(self._work, request)
            return
        fields, body = answer
        self._transport.write(
            b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\nDate: %b\r\n\r\n%b"
            % (fields, len(body), _date(int(time.time())), body)
        )
        self._writing_began, self._written = time.monotonic(), len(body)
        self.deadline = self._write_deadline()
        self._finish(request)

    def _work(self, request: Request) -> None:
        """Run the application and make the first part of its answer, in a thread."""
        try:
            answer = self._server.call(self._environ(request), request)
        except Exception:
            logger.exception("the application failed")
            self._on_loop(self._failed)
            return
        self._produce(answer)

    def _produce(self, answer: Answer) -> None:
        """Make the next part of an answer, in a thread."""
        parts, size, is_end = [], 0, False
        try:
            while size < ANSWER_BYTES and not is_end:
                part = next(answer.chunks, None)
                is_end = part is None
                parts.append(part or b"")
                size += len(parts[-1])
            if is_end:
                answer.close()
        except Exception:
            logger.exception("the answer broke off")
            self._on_loop(self._failed)
            return
        self._on_loop(self._write_part, answer, b"".join(parts), is_end)

    def _on_loop(self, work: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(work, *arguments)

    def _write_part(self, answer: Answer, data: bytes, is_end: bool) -> None:
        request = self._answering
        if self._transport is None or request is None:
            self._release(request)
            if not is_end:
                self._server.run(answer.close)
            return
        out = []
        if self._answer is None:
            self._answer = answer
            keep_alive = request.keep_alive and not self._server.is_stopping
            out.append(answer.head(keep_alive=keep_alive, length=len(data) if is_end else None))
            request.keep_alive = keep_alive and (is_end or answer.has_end())
            self._writing_began, self._written = time.monotonic(), 0
            self._release(request)
        if data and answer.has_body():
            out.append(answer.framed(data))
        if is_end and answer.is_chunked:
            out.append(b"0\r\n\r\n")
        self._transport.write(b"".join(out))
        self._written += len(data)
        self.deadline = self._write_deadline()
        if is_end:
            self._finish(request)
        elif self._can_write:
            self._server.run(self._produce, answer)

    def _write_deadline(self) -> float:
        """When the client must have taken what was written."""
        return self._writing_began + self._limits.body_seconds + self._written / MIN_BYTES_PER_SECOND

    def _failed(self) -> None:
        """The application raised: say so where nothing was said yet."""
        self._release(self._answering)
        if self._answer is None:
            self._refuse(500, "Internal error encountered.")
        else:
            self.abort()

    def _finish(self, request: Request) -> None:
        """The answer is written as far as we are concerned: read the next request, or end the connection."""
        self._answering = self._answer = None
        self._release(request)
        if self._ready and request.keep_alive:
            self._begin(self._ready.popleft())
        elif self._is_dropping:
            self.deadline = time.monotonic() + DROP_SECONDS
        elif not request.keep_alive:
            self._close()
        else:
            self._read_on()

    def _read_on(self) -> None:
        request = self._reading
        if request is not None and request.method:
            if request.is_too_large():
                self._drop_body(request)
            else:
                self._read_body(request)
            return
        is_idle = request is None
        self.deadline = time.monotonic() + (self._limits.idle_seconds if is_idle else self._limits.head_seconds)
        self._transport.resume_reading()

    def _environ(self, request: Request) -> dict[str, Any]:
        path, _, query = request.target.partition(b"#")[0].partition(b"?")
        environ = self._base_environ | {
            "REQUEST_METHOD": request.method,
            "SERVER_PROTOCOL": f"HTTP/{request.version}",
            "PATH_INFO": (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1"),
            "QUERY_STRING": query.decode("latin-1"),
            "wsgi.input": io.BytesIO(b"".join(request.body)),
        }
        for raw_name, raw_value in request.headers:
            if b"_" in raw_name:
                continue  # it would look like the one with a hyphen
            name, value = raw_name.decode("latin-1").upper().replace("-", "_"), raw_value.decode("latin-1")
            if name not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
                name = f"HTTP_{name}"
            if name in environ:
                value = f"{environ[name]}{'; ' if name == 'HTTP_COOKIE' else ','}{value}"
            environ[name] = value
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        if request.length is not None or request.size:
            environ["CONTENT_LENGTH"] = str(max(request.length or 0, request.size))
        return environ

    # Ends

    def out_of_time(self) -> None:
        """The deadline has passed: end the connection, unless the client still takes an answer at a fair pace."""
        self.deadline = NEVER
        if self._transport is None:
            return
        is_writing = self._transport.get_write_buffer_size() > 0
        if is_writing and time.monotonic() < self._write_deadline():
            self.deadline = self._write_deadline()
        elif is_writing or self._answering is not None:
            self.abort()
        elif self._reading is not None and self._reading.method:
            self._refuse(408, "The request did not arrive in time.")
        else:
            self._close()

    def _misread(self, status: int, why: str) -> None:
        """What came is no request: finish those that came before it, and read no further."""
        last = self._last_read()
        if last is None:
            self._refuse(status, why)
            return
        last.keep_alive = False
        self._is_dropping = True
        self._release(self._reading)
        self._reading = None

    def _last_read(self) -> Request | None:
        """The last complete request that is not answered yet."""
        return self._ready[-1] if self._ready else self._answering

    def close_when_done(self) -> None:
        if self._answering is not None:
            self._answering.keep_alive = False
        elif self._reading is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close once the answer is with the client."""
        self.deadline = max(time.monotonic() + DROP_SECONDS, self._write_deadline())
        self._transport.close()

    def _refuse(self, status: int, why: str) -> None:
        """Answer by ourselves and end the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        text = why.encode()
        head = (
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: text/plain\r\n"
            f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + text)
        self._writing_began, self._written = time.monotonic(), 0
        self._is_dropping = True
        self._answering = None
        self._release(self._reading)
        self._reading = None
        self.deadline = time.monotonic() + DROP_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()


def _path_of(target: bytes) -> bytes:
    """The path and query of a target that names the host as well; HttpParserError for what has none."""
    url = httptools.parse_url(target)
    path = url.path or b"/"
    if not path.startswith(b"/"):
        raise httptools.HttpParserInvalidURLError
    return path + (b"?" + url.query if url.query else b"")


@lru_cache(maxsize=1)
def _date(_second: int) -> bytes:
    return formatdate(usegmt=True).encode()
