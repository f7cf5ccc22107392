"""One keep-alive connection: sends a request, reads its answer, one at a time.

The way of an ordinary answer is `data_received` -> parser -> `_finish`; everything else (pieces, interim answers,
limits, hang-ups) is told apart from it by one test.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from httptools import HttpParserError, HttpResponseParser

from deliveries.client.head import HeadScan, retry_after_of
from deliveries.client.wheel import NEVER
from deliveries.rules.outcome import Reason
from deliveries.rules.retry import RETRY_AFTER_STATUSES

if TYPE_CHECKING:
    from deliveries.client.pool import Pool
    from deliveries.client.request import Request, Shared

_VERSION = b"HTTP/1."
_END_OF_HEAD = b"\r\n\r\n"
_PROCESSING = 102
#: Not statuses, and 101 Switching Protocols, which nobody asked for.
_REFUSED = frozenset({*range(100), 101})
_FINAL = 200
_REDIRECT = 300
#: Interim answers to one request; more is an attack.
_MAX_INTERIM = 16


class _Hostile(Exception):
    """Stops the parser: surplus bytes, a protocol switch or too many interim answers."""


class Connection(asyncio.BaseProtocol):
    """States: idle (no request), waiting for the final head, in its body. A closed one is never used again."""

    __slots__ = (
        "_feed",
        "_held",
        "_interim",
        "_keep",
        "_parser",
        "_pool",
        "_processing",
        "_received",
        "_received_limit",
        "_request",
        "_retry_after_s",
        "_scan",
        "_shared",
        "_status",
        "_transport",
        "_uses",
        "_whole",
        "closed",
        "due",
        "tick",
    )

    def __init__(self, pool: Pool, shared: Shared) -> None:
        self._pool = pool
        self._shared = shared
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._uses = 0
        self.closed = False
        self.due = 0.0
        self.tick = NEVER
        self._reset()

    def _reset(self) -> None:
        #: The first few bytes, until they are enough to know HTTP/1 by: the parser takes HTTP/0.9, 2.0 and RTSP too.
        self._held = b""
        self._scan: HeadScan | None = None
        self._received = 0
        self._received_limit = self._shared.options.header_limit_bytes
        self._interim = 0
        self._processing = False
        self._status = 0
        self._whole = False
        self._keep = False
        self._retry_after_s = 0.0

    # The pool's side.

    def send(self, request: Request) -> None:
        self._request = request
        request.connection = self
        if self._uses:
            self._reset()
        self._uses += 1
        self._set_due(request.deadline)
        transport = cast(asyncio.Transport, self._transport)
        transport.write(request.payload)
        if request.large_body:
            transport.write(request.large_body)

    def wait_idle(self, now: float) -> None:
        self._set_due(now + self._shared.options.idle_timeout_s)

    def discard(self) -> None:
        """Closes at once; the peer gets no say in how long that takes."""
        if not self.closed:
            self.closed = True
            self._pool.idle.pop(self, None)
            if self._transport is not None:
                self._transport.abort()

    def abort(self) -> None:
        """Gives up the request, if there is one, and the connection."""
        self._finish(0, Reason.ABORTED, keep=False)
        self.discard()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._request is None:
            self.discard()
            return
        if not self._received and (data[:7] != _VERSION or self._held):
            data = self._held + data
            self._held = data
            if len(data) < len(_VERSION) and _VERSION.startswith(data):
                return
            if not data.startswith(_VERSION):
                self._fail(Reason.INVALID_RESPONSE)
                return
        self._received += len(data)
        if self._received > self._received_limit and not self._status and self._head_too_large(data):
            self._fail(Reason.HEADER_TOO_LARGE)
            return
        interim = self._interim
        head_was_open = not self._status
        intact = True
        try:
            self._feed(data)
        except HttpParserError:
            intact = False
        if head_was_open and self._status in RETRY_AFTER_STATUSES:
            self._retry_after_s = retry_after_of(data, self._interim - interim)
        if self._whole:
            self._finish(self._status, "", keep=self._keep and intact)
        elif not intact:
            self._fail(Reason.INVALID_RESPONSE)
        else:
            self._wait_for_more(data, self._interim - interim, head_was_open=head_was_open)

    def eof_received(self) -> bool:
        """A body without a length ends with the connection; anything else is dealt with in `connection_lost`."""
        if self._request is not None and self._status and not (self._scan is not None and self._scan.has_length):
            self._finish(self._status, "", keep=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._shared.wheel.drop(self)
        request = self._request
        if request is not None:
            if self._uses > 1 and not self._received and not self._held:
                # The receiver hung up while the request was on its way: safe to send again, as no answer had begun.
                self._request = None
                self._pool.resend(request)
            else:
                self._fail(Reason.BODY_INCOMPLETE if self._status else Reason.RESET)
        self._transport = None
        # The parser holds this object's methods: without this each connection would wait for the cycle collector.
        del self._parser, self._feed
        self._pool.lost(self)

    # The parser's side.

    def on_message_begin(self) -> None:
        if self._whole:
            raise _Hostile

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= _FINAL:
            self._status = status
            return
        self._interim += 1
        if status == _PROCESSING:
            self._processing = True
        elif status in _REFUSED or self._interim > _MAX_INTERIM:
            raise _Hostile

    def on_message_complete(self) -> None:
        if self._status:
            self._whole = True
            self._keep = self._parser.should_keep_alive()

    # The wheel's side.

    def on_due(self, now: float) -> None:
        request = self._request
        if self.closed:
            return
        if now < self.due:
            self._shared.wheel.put(self, self.due)
        elif request is None:
            self.discard()
        elif self._status and now < request.deadline:
            self._fail(Reason.BODY_TIMEOUT)
        else:
            self._fail(Reason.DEADLINE_EXCEEDED)

    # The inner workings.

    def _set_due(self, due: float) -> None:
        self.due = due
        self._shared.wheel.put(self, due)

    def _head_too_large(self, piece: bytes) -> bool:
        """A piece that takes the answer over the limit of the head may hold the end of the head and much body."""
        end = piece.find(_END_OF_HEAD)
        return end < 0 or self._received - len(piece) + end > self._received_limit

    def _wait_for_more(self, piece: bytes, interim_heads: int, *, head_was_open: bool) -> None:
        if head_was_open:
            if self._scan is None:
                self._scan = HeadScan()
            self._scan.feed(piece, interim_heads)
        options = self._shared.options
        if not self._status:
            if self._processing:
                self._set_due(min(self.due, self._shared.clock() + options.processing_grace_s))
            if self._received > self._received_limit:
                self._fail(Reason.HEADER_TOO_LARGE)
        elif head_was_open:
            self._received_limit = self._received + options.body_limit_bytes
            self._set_due(min(self.due, self._shared.clock() + options.body_timeout_s))
        elif self._received > self._received_limit:
            self._fail(Reason.BODY_TOO_LARGE)

    def _fail(self, reason: Reason) -> None:
        """A 102 that no final status followed is the answer, whatever ended the wait for one."""
        if self._processing and not self._status:
            self._finish(_PROCESSING, "", keep=False)
        else:
            self._finish(0, reason, keep=False)

    def _finish(self, status: int, reason: str, *, keep: bool) -> None:
        request = self._request
        if request is None:
            return
        self._request = None
        now = self._shared.clock()
        if self._uses == 1 and status:
            self._pool.answered(cast(asyncio.Transport, self._transport))
        if keep and not (request.large_body and self._answered_early(status)):
            self._pool.release(self, now)
        else:
            self.discard()
        self._shared.report(request, status, reason, now, retry_after_s=self._retry_after_s if status else 0.0)

    def _answered_early(self, status: int) -> bool:
        """Whether some of a large body may be unsent. Over TLS the transport does not know, so a refusal counts."""
        return status >= _REDIRECT or cast(asyncio.Transport, self._transport).get_write_buffer_size() > 0


class PlainConnection(Connection, asyncio.Protocol):
    """A connection without TLS; the loop makes bytes of the size it has read."""

    __slots__ = ()


class TlsConnection(Connection, asyncio.BufferedProtocol):
    """Decrypts into a buffer that all connections share: without it uvloop allocates 256 KB for each read.

    What is in the buffer is copied before anything else can be read, so sharing is safe.
    """

    __slots__ = ()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.tls_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.tls_buffer[:nbytes]))
