"""One connection of the HTTP server: the protocol between asyncio's transport and the HTTP parser."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import httptools
import orjson
from django.core.signing import BadSignature

from pushhub.common.background import threads_stuck
from pushhub.common.errors import ResourceExhausted
from pushhub.common.peers import last_forwarded
from pushhub.runtime.httpserver import forwarding
from pushhub.runtime.httpserver.admission import Admission
from pushhub.runtime.httpserver.limits import ByteBudget, Connections, Limits, Reservation, client_of
from pushhub.runtime.httpserver.requests import (
    BODY_BYTES,
    HEAD_BYTES,
    HeadTooLargeError,
    Request,
    connection_environ,
    environ_of,
    path_of,
)
from pushhub.runtime.httpserver.responses import Direct, Response, direct_response, refusal

logger = logging.getLogger(__name__)

#: The most header fields of a request, and of all requests that wait on one connection: a field of four bytes takes
#: more than 100 bytes of memory. A waiting request counts as REQUEST_FIELDS fields.
MOST_FIELDS = 500
REQUEST_FIELDS = 4
#: A smaller body needs no reservation: it takes no more memory than the connection's own buffers.
SMALL_BODY_BYTES = 64 * 1024
#: A client that sends or receives more slowly than this, after the first seconds, is cut off.
MIN_BYTES_PER_SECOND = 8 * 1024
#: How much of a response is produced before the client must have received some of it.
PART_BYTES = 256 * 1024
#: How long the rest of a refused body is read and dropped, so that the client gets to see the response.
DROP_SECONDS = 2.0
NEVER = float("inf")
#: The event loop answers this itself, so that busy threads don't delay it.
HEALTH = b"/healthz"
HEALTHY = (b"Content-Type: application/json\r\n", b'{"status": "ok"}')


class Server(Protocol):
    """What a connection needs of the server that accepted it."""

    limits: Limits
    admission: Admission
    direct: Direct | None
    #: The memory for bodies.
    bodies: ByteBudget
    #: The open connections by client, and the connections themselves.
    addresses: Connections
    connections: set[HttpConnection]
    is_stopping: bool

    def run(self, work: Callable[..., None], *arguments: object) -> None: ...

    def call(self, environ: dict[str, Any], request: Request) -> Response: ...


class HttpConnection(asyncio.Protocol):
    """Reads a request, writes its response, and only then reads on."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._address = self._client = ""
        self._base_environ: dict[str, Any] = {}
        self._is_counted = False
        #: The first bytes, as long as they may be the beginning of the gRPC port's line; then None.
        self._first: bytes | None = b""
        #: The request that is being received, and when its body began.
        self._reading: Request | None = None
        self._body_began = 0.0
        #: Bytes since the last head, the last piece of a body or the last request ended.
        self._field_bytes = 0
        #: Header fields of the request that is being received and of those in `_ready`.
        self._fields = 0
        #: Requests that the client sent before it had the response to `_answering`.
        self._ready: deque[Request] = deque()
        #: The request that is being answered, and the response once its head is written.
        self._answering: Request | None = None
        self._response: Response | None = None
        #: Whether all of the response is written, but the client has yet to take most of it.
        self._is_sending = False
        #: Whether the connection is about to end, and all that the client still sends is dropped.
        self._is_dropping = False
        self._can_write = True
        self._writing_began = 0.0
        self._written = 0
        #: When the server ends the connection, by the monotonic clock.
        self.deadline = NEVER

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername") or ("", 0)
        local = transport.get_extra_info("sockname") or ("", 0)
        self._server.connections.add(self)
        self._base_environ = connection_environ(local)
        self.deadline = time.monotonic() + self._limits.head_seconds
        self._count_client(str(peer[0]))

    def _count_client(self, address: str) -> None:
        """Count the connection as one of the client's, or refuse it."""
        if self._is_counted:
            self._server.addresses.leave(self._client)
        self._address, self._client = address, client_of(address)
        self._is_counted = self._server.addresses.enter(self._client)
        if not self._is_counted:
            self._refuse(429, "Too many connections from this address.")
            self._transport.close()

    def _forwarded(self, first: bytes) -> bytes:
        """Learn from the line of the gRPC port for whom it forwards. Return the bytes behind the line."""
        line, end, rest = first.partition(b"\n")
        if not first.startswith(forwarding.BEGINNING[: len(first)]):
            self._first = None
            return first
        if not end and len(first) <= forwarding.MOST_BYTES:
            self._first = first
            return b""
        self._first = None
        try:
            scheme, address = forwarding.read_client(line)
        except BadSignature:
            logger.warning("a line of the gRPC port is not signed with this PUSHHUB_SECRET_KEY, or is too old")
            self._refuse(400, "The request is not valid HTTP/1.1.")
            return b""
        self._base_environ |= {"wsgi.url_scheme": scheme}
        self._count_client(address)
        return rest

    def data_received(self, data: bytes) -> None:
        if self._first is not None:
            data = self._forwarded(self._first + data)
        if self._is_dropping or not data:
            return
        if self._answering is not None:
            # Pausing before would cost each request two system calls, although most clients wait for the response.
            self._transport.pause_reading()
        self._field_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._answering is not None:  # the upgrade is ignored
                self._answering.keep_alive = False
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, HeadTooLargeError):
                self._malformed(431, "The request's head is too large.")
            else:
                self._malformed(400, "The request is not valid HTTP/1.1.")
            return
        if self._reading is not None and self._field_bytes > HEAD_BYTES:
            part = "trailers are" if self._reading.method else "head is"
            self._malformed(431, f"The request's {part} too large.")

    def eof_received(self) -> bool:
        """Keep the connection open for a client that sends no more, but still waits for a response."""
        last = self._last_received()
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
        if self._response is not None and not self._can_write:
            self._release(self._answering)
            self._server.run(self._response.close)
        self._transport = None
        self.deadline = NEVER

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        if self._response is not None and self._answering is not None:
            self._server.run(self._produce_part, self._response)
        elif self._is_sending and self._answering is not None:
            self._is_sending = False
            self._go_on(self._answering)

    # Called by the parser

    def on_message_begin(self) -> None:
        self._reading = Request()
        self._count_fields(REQUEST_FIELDS)
        if self._answering is None:
            self.deadline = time.monotonic() + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        assert self._reading is not None
        self._reading.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._reading is not None
        # Trailers are dropped: a proxy has not checked them as it has checked the head (RFC 9110, section 6.5.1).
        if not self._reading.method:
            self._count_fields(1)
            self._reading.headers.append((name.lower(), value))

    def _count_fields(self, count: int) -> None:
        self._fields += count
        if self._fields > MOST_FIELDS:
            raise HeadTooLargeError

    def on_headers_complete(self) -> None:
        request = self._reading
        assert request is not None
        if self._is_dropping:
            return
        request.method = self._parser.get_method().decode("latin-1")
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive()
        request.check_head()
        if not request.target.startswith(b"/"):
            request.target = path_of(request.target)
        self._field_bytes = 0
        fields = dict(request.headers)
        request.address = self._address
        if self._limits.is_behind_proxy:
            request.address = last_forwarded(fields.get(b"x-forwarded-for", b"").decode("latin-1")) or self._address
        if b"content-length" in fields:
            request.length = int(fields[b"content-length"])
        elif b"transfer-encoding" not in fields:
            return
        request.expects = fields.get(b"expect", b"").lower() == b"100-continue"
        if not request.is_too_large():
            self._reserve_memory(request)
        elif self._answering is None:
            self._drop_body(request)

    def on_body(self, body: bytes) -> None:
        self._field_bytes = 0
        request = self._reading
        if request is None or self._is_dropping:
            return
        request.body += body
        request.size += len(body)
        if request.is_too_large():
            if self._answering is None:
                self._drop_body(request)
        elif self._answering is None:
            self.deadline = self._body_began + self._limits.body_seconds + request.size / MIN_BYTES_PER_SECOND

    def on_message_complete(self) -> None:
        self._field_bytes = 0
        request, self._reading = self._reading, None
        if request is None or self._is_dropping:
            return
        if self._answering is None:
            self._answer(request)
        else:
            self._ready.append(request)

    # Bodies

    def _reserve_memory(self, request: Request) -> None:
        """Read the body as soon as the bodies of other requests leave memory for it."""
        size = BODY_BYTES if request.length is None else request.length
        if size > SMALL_BODY_BYTES:
            request.reservation = Reservation(client_of(request.address), size, lambda: self._granted(request))
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
        """Answer a request whose body is too large. The application sees that from its length."""
        request.length = max(request.size, request.length or 0)
        request.body.clear()
        request.keep_alive = False
        self._reading = None
        self._is_dropping = True
        self._answer(request)

    # Responses

    def _answer(self, request: Request) -> None:
        self._answering = request
        self._fields -= REQUEST_FIELDS + len(request.headers)
        self.deadline = NEVER
        if request.target == HEALTH and request.method == "GET" and not threads_stuck():
            self._loop.call_soon(self._respond_directly, request, HEALTHY)
        elif self._is_dropping or not self._is_answered_directly(request):
            self._admit(request)

    def _admit(self, request: Request) -> None:
        """Have the application answer when it is the turn of the request's tenant."""
        try:
            turn = self._server.admission.submit(
                partial(self._run_application, request),
                target=request.target,
                headers=request.headers,
                client=client_of(request.address),
            )
        except ResourceExhausted as error:
            self._refuse_busy(error)
        else:
            turn.add_done_callback(lambda turn: self._call_in_loop(self._had_turn, turn))

    def _had_turn(self, turn: Future[None]) -> None:
        if not turn.cancelled() and isinstance(error := turn.exception(), ResourceExhausted):
            self._refuse_busy(error)

    def _refuse_busy(self, error: ResourceExhausted) -> None:
        from subscriptions.api.errors import error_body

        self._refuse(429, orjson.dumps(error_body(error)).decode(), content_type="application/json; charset=UTF-8")

    def _is_answered_directly(self, request: Request) -> bool:
        """Return whether the server's direct path takes the request."""
        direct = self._server.direct
        respond = partial(self._respond_directly, request)
        return (
            direct is not None
            and request.method == "POST"
            and request.keep_alive
            and request.version == "1.1"
            and request.size <= SMALL_BODY_BYTES
            and not self._server.is_stopping
            and direct(request.target, request.headers, bytes(request.body), respond)
        )

    def _respond_directly(self, request: Request, response: tuple[bytes, bytes] | None) -> None:
        if self._transport is None or self._answering is not request:
            return
        if response is None:
            self._admit(request)
            return
        fields, body = response
        self._transport.write(direct_response(fields, body))
        self._writing_began, self._written = time.monotonic(), len(body)
        self.deadline = self._write_deadline()
        self._finish(request)

    def _run_application(self, request: Request) -> None:
        """Run the application and produce the first part of its response. Called in a thread."""
        try:
            response = self._server.call(environ_of(request, self._base_environ), request)
        except Exception:
            logger.exception("the application failed")
            self._call_in_loop(self._application_failed)
            return
        self._produce_part(response)

    def _produce_part(self, response: Response) -> None:
        """Produce the next part of a response. Called in a thread."""
        parts, size, is_end = [], 0, False
        try:
            while size < PART_BYTES and not is_end:
                part = next(response.chunks, None)
                is_end = part is None
                parts.append(part or b"")
                size += len(parts[-1])
            if is_end:
                response.close()
        except Exception:
            logger.exception("the application failed while it produced the response")
            self._call_in_loop(self._application_failed)
            return
        self._call_in_loop(self._write_part, response, b"".join(parts), is_end)

    def _call_in_loop(self, work: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(work, *arguments)

    def _write_part(self, response: Response, data: bytes, is_end: bool) -> None:
        request = self._answering
        if self._transport is None or request is None:
            self._release(request)
            if not is_end:
                self._server.run(response.close)
            return
        out = []
        if self._response is None:
            self._response = response
            keep_alive = request.keep_alive and not self._server.is_stopping
            out.append(response.head(keep_alive=keep_alive, length=len(data) if is_end else None))
            request.keep_alive = keep_alive and (is_end or response.has_end())
            self._writing_began, self._written = time.monotonic(), 0
            self._release(request)
        if data and response.has_body():
            out.append(response.frame(data))
        if is_end and response.is_chunked:
            out.append(b"0\r\n\r\n")
        self._transport.write(b"".join(out))
        self._written += len(data)
        self.deadline = self._write_deadline()
        if is_end:
            self._finish(request)
        elif self._can_write:
            self._server.run(self._produce_part, response)

    def _write_deadline(self) -> float:
        """Return when the client must have received what was written."""
        return self._writing_began + self._limits.body_seconds + self._written / MIN_BYTES_PER_SECOND

    def _application_failed(self) -> None:
        """Send an error, unless a part of the response has been sent already."""
        self._release(self._answering)
        if self._response is None:
            self._refuse(500, "Internal error encountered.")
        else:
            self.abort()

    def _finish(self, request: Request) -> None:
        """Go on after all of a response was written, once the client has taken most of it.

        Otherwise the responses to a client that sends requests and reads nothing would gather in memory.
        """
        self._response = None
        self._release(request)
        self._is_sending = not self._can_write and not self._is_dropping
        if not self._is_sending:
            self._go_on(request)

    def _go_on(self, request: Request) -> None:
        """Answer or read the next request, or end the connection."""
        self._answering = None
        if self._ready and request.keep_alive:
            self._answer(self._ready.popleft())
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

    # Ends

    def end_overdue(self) -> None:
        """End the connection after its deadline, unless the client receives a response fast enough."""
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

    def _malformed(self, status: int, reason: str) -> None:
        """Answer the requests that came before a malformed one, and read no further."""
        last = self._last_received()
        if last is None:
            self._refuse(status, reason)
            return
        last.keep_alive = False
        self._is_dropping = True
        self._release(self._reading)
        self._reading = None

    def _last_received(self) -> Request | None:
        """Return the last complete request that is not answered yet."""
        return self._ready[-1] if self._ready else self._answering

    def close_when_done(self) -> None:
        """Close the connection once the current request, if there is one, is answered."""
        if self._answering is not None:
            self._answering.keep_alive = False
        elif self._reading is None:
            self._close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        """Close the connection once the client has received the response."""
        self.deadline = max(time.monotonic() + DROP_SECONDS, self._write_deadline())
        self._transport.close()

    def _refuse(self, status: int, reason: str, content_type: str = "text/plain") -> None:
        """Send an error without the application, and end the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(refusal(status, reason, content_type))
        self._writing_began, self._written = time.monotonic(), 0
        self._is_dropping = True
        self._answering = None
        self._release(self._reading)
        self._reading = None
        self.deadline = time.monotonic() + DROP_SECONDS
        if self._transport.can_write_eof():
            self._transport.write_eof()
