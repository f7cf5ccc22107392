"""One keep-alive connection: it sends one request at a time and reads the response.

An ordinary response takes the path `data_received` -> parser -> `_finish`. One test separates everything else from it:
responses in pieces, interim responses, limits and hang-ups.
"""

from __future__ import annotations

import asyncio
import random
import re
from datetime import UTC, datetime
from typing import Protocol, cast

from httptools import HttpParserError, HttpResponseParser

from deliveries.client.answer import RAW_BYTES
from deliveries.client.request import Request, Shared
from deliveries.client.wheel import NEVER
from deliveries.rules.outcome import Reason
from deliveries.rules.retry import RETRY_AFTER_STATUSES, retry_after_seconds

_VERSION = b"HTTP/1."
_END_OF_HEAD = b"\r\n\r\n"
_PROCESSING = 102
#: Numbers below 100 are no statuses, and the client never asks for 101 Switching Protocols.
_REFUSED = frozenset({*range(100), 101})
_FINAL = 200
_REDIRECT = 300
#: Interim responses to one request; more than that is an attack.
_MAX_INTERIM = 16

_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after:([^\r\n]{0,64})", re.IGNORECASE)
#: The longest part of a piece that may be the beginning of a match, or of the end of the head.
_OVERLAP = len(b"\r\ntransfer-encoding:") - 1


def retry_after_of(piece: bytes, interim_heads: int) -> float:
    """Return the seconds that the final head in this piece asks the client to wait, or 0.

    `interim_heads` is the number of 1xx heads that end before it in the piece. Heads hardly ever arrive in several
    pieces, and a missed Retry-After does no harm, so only this piece is searched.
    """
    start = 0
    for _ in range(interim_heads):
        start = piece.find(_END_OF_HEAD, start) + len(_END_OF_HEAD)
    end = piece.find(_END_OF_HEAD, start)
    match = _RETRY_AFTER.search(piece, start, end if end >= 0 else len(piece))
    return retry_after_seconds(match[1].decode("ascii", "replace").strip(), now=datetime.now(UTC)) if match else 0.0


class HeadScan:
    """Finds out whether a head that comes in pieces declares a length, which the parser does not report.

    A body that ends with the connection is complete if no length was declared, and incomplete otherwise. Reading every
    header in Python would slow down all ordinary responses, and would buffer heads. This keeps 19 bytes.
    """

    def __init__(self) -> None:
        self.has_length = False
        self._tail = b""

    def feed(self, piece: bytes, interim_heads: int) -> None:
        """Read a piece; `interim_heads` is the number of 1xx heads that end in it."""
        window = self._tail + piece
        start = 0
        for _ in range(interim_heads):
            start = window.index(_END_OF_HEAD, start) + len(_END_OF_HEAD)
            self.has_length = False
        end = window.find(_END_OF_HEAD, start)
        if _FRAMING.search(window, start, end if end >= 0 else len(window)):
            self.has_length = True
        self._tail = window[max(start, len(window) - _OVERLAP) :]


class _Hostile(Exception):
    """Stops the parser: surplus bytes, a protocol switch or too many interim responses."""


class Owner(Protocol):
    """What a connection needs of the pool that it belongs to."""

    def answered(self, transport: asyncio.Transport) -> None:
        """The first response on a connection has arrived."""

    def release(self, connection: Connection, now: float) -> None:
        """The connection may carry another request."""

    def discarded(self, connection: Connection) -> None:
        """The connection is being closed; no request may be sent on it."""

    def resend(self, request: Request) -> None:
        """Send this request on another connection: the receiver hung up before it answered."""

    def lost(self, connection: Connection) -> None:
        """The connection is closed."""


class Connection(asyncio.BaseProtocol):
    """A connection is idle, waits for the final head, or reads the body. A closed connection is never used again."""

    def __init__(self, owner: Owner, shared: Shared) -> None:
        self._owner = owner
        self._shared = shared
        self._parser = HttpResponseParser(self)
        self._feed = self._parser.feed_data
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._uses = 0
        #: When the connection takes no more requests. Those that were opened together don't end together.
        self._ends = shared.clock() + shared.options.connection_age_s * random.uniform(0.75, 1.25)  # noqa: S311
        self.closed = False
        self.due = 0.0
        self.tick = NEVER
        self._reset()

    def _reset(self) -> None:
        #: The first few bytes, until they suffice to recognize HTTP/1: the parser accepts HTTP/0.9, 2.0 and RTSP too.
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

    # Called by the pool.

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
        """Close at once; the peer cannot delay it."""
        if not self.closed:
            self.closed = True
            self._owner.discarded(self)
            if self._transport is not None:
                self._transport.abort()

    def abort(self) -> None:
        """Give up the request, if there is one, and close the connection."""
        self._finish(0, Reason.ABORTED, keep=False)
        self.discard()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        request = self._request
        if request is None:
            self.discard()
            return
        if request.answer is not None:
            request.answer += data[: RAW_BYTES - len(request.answer)]
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
        """End a body without a length, which ends with the connection. `connection_lost` handles all other cases."""
        if self._request is not None and self._status and not (self._scan is not None and self._scan.has_length):
            self._finish(self._status, "", keep=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._shared.wheel.drop(self)
        request = self._request
        if request is not None:
            if self._uses > 1 and not self._received and not self._held:
                # The receiver hung up while the request was on its way. No response had begun, so that sending the
                # request again is safe.
                self._request = None
                self._owner.resend(request)
            else:
                self._fail(Reason.BODY_INCOMPLETE if self._status else Reason.RESET)
        self._transport = None
        # The parser holds this object's methods: without this each connection would wait for the cycle collector.
        del self._parser, self._feed
        self._owner.lost(self)

    # Called by the parser.

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

    # Called by the timer wheel.

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

    def _set_due(self, due: float) -> None:
        self.due = due
        self._shared.wheel.put(self, due)

    def _head_too_large(self, piece: bytes) -> bool:
        """Return whether the head alone exceeds the limit: this piece may hold its end and much of the body."""
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
        """End the request as failed. A 102 without a final status counts as the response, whatever ended the wait."""
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
        # A request that waits may take the connection at once, which resets it.
        retry_after_s = self._retry_after_s if status else 0.0
        if self._uses == 1 and status:
            self._owner.answered(cast(asyncio.Transport, self._transport))
        if keep and now < self._ends and not (request.large_body and self._answered_early(status)):
            self._owner.release(self, now)
        else:
            self.discard()
        self._shared.report(request, status, reason, now, retry_after_s=retry_after_s)

    def _answered_early(self, status: int) -> bool:
        """Return whether a part of a large body may be unsent.

        A TLS transport cannot tell, so any status other than a success counts as early.
        """
        return status >= _REDIRECT or cast(asyncio.Transport, self._transport).get_write_buffer_size() > 0


class PlainConnection(Connection, asyncio.Protocol):
    """A connection without TLS; the loop allocates bytes of the size that it has read."""


class TlsConnection(Connection, asyncio.BufferedProtocol):
    """A connection that decrypts into a buffer shared by all connections; otherwise uvloop allocates 256 KB per read.

    Sharing is safe, because the content is copied before the loop reads anything else.
    """

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._shared.tls_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._shared.tls_buffer[:nbytes]))
