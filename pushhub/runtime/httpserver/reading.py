"""How a connection of the HTTP server reads: bytes become requests, within the limits of their client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httptools
from django.core.signing import BadSignature

from pushhub.common.errors import ResourceExhausted
from pushhub.common.peers import client_of, last_forwarded
from pushhub.runtime.httpserver import forwarding
from pushhub.runtime.httpserver.limits import Reservation
from pushhub.runtime.httpserver.requests import (
    BODY_BYTES,
    HEAD_BYTES,
    HeadTooLargeError,
    Request,
    connection_environ,
    path_of,
)
from pushhub.runtime.httpserver.responses import Response

if TYPE_CHECKING:
    from pushhub.runtime.httpserver.server import HttpServer

logger = logging.getLogger(__name__)

#: The most header fields of a request, and of all requests that wait on one connection: a field of four bytes takes
#: more than 100 bytes of memory. A waiting request counts as REQUEST_FIELDS fields.
MOST_FIELDS = 500
REQUEST_FIELDS = 4
#: A smaller body needs no reservation: it takes no more memory than the connection's own buffers.
SMALL_BODY_BYTES = 64 * 1024
#: A client that sends or receives more slowly than this, after the first seconds, is cut off.
MIN_BYTES_PER_SECOND = 8 * 1024
NEVER = float("inf")


class RequestReader(asyncio.Protocol):
    """Reads requests, and has what a connection knows. HttpConnection answers them, and has these three methods."""

    _answer: Callable[[Request], None]
    _refuse: Callable[[int, str], None]
    _refuse_exhausted: Callable[[ResourceExhausted], None]

    def __init__(self, server: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
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
        self._server.connections.add(self)  # type: ignore[arg-type]  # it is an HttpConnection
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
            self._refuse_exhausted(ResourceExhausted("Too many connections at once: close some, or try again later."))
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

    def _malformed(self, status: int, reason: str) -> None:
        """Answer the requests that came before a malformed one, and read no further."""
        if self._is_dropping:
            return
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
