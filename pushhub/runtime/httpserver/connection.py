"""One connection of the HTTP server: reads a request (reading.py), and answers it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import orjson

from pushhub.common.background import threads_stuck
from pushhub.common.errors import ResourceExhausted
from pushhub.common.peers import client_of
from pushhub.runtime.httpserver.reading import (
    MIN_BYTES_PER_SECOND,
    NEVER,
    REQUEST_FIELDS,
    SMALL_BODY_BYTES,
    RequestReader,
)
from pushhub.runtime.httpserver.requests import Request, environ_of
from pushhub.runtime.httpserver.responses import Response, direct_response, refusal

logger = logging.getLogger(__name__)

#: How much of a response is produced before the client must have received some of it.
PART_BYTES = 256 * 1024
#: How long the rest of a refused body is read and dropped, so that the client gets to see the response.
DROP_SECONDS = 2.0
#: The event loop answers this itself, so that busy threads don't delay it.
HEALTH = b"/healthz"
HEALTHY = (b"Content-Type: application/json\r\n", b'{"status": "ok"}')


class HttpConnection(RequestReader):
    """Reads a request, writes its response, and only then reads on."""

    # Called by the transport

    def eof_received(self) -> bool:
        """Keep the connection open for a client that sends no more, but still waits for a response."""
        last = self._last_received()
        if last is None:
            return False
        last.keep_alive = False
        for request in (self._answering, *self._ready):
            if request is not None:
                request.has_left = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._is_counted:
            self._server.addresses.leave(self._client)
        self._release(self._reading)
        if self._answering is not None:
            self._answering.has_left = True
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
            turn = self._server.threads.submit(
                partial(self._run_application, request),
                target=request.target,
                headers=request.headers,
                client=client_of(request.address),
            )
        except ResourceExhausted as error:
            self._refuse_exhausted(error)
        else:
            turn.add_done_callback(lambda turn: self._call_in_loop(self._had_turn, turn))

    def _had_turn(self, turn: Future[None]) -> None:
        if not turn.cancelled() and isinstance(error := turn.exception(), ResourceExhausted):
            self._refuse_exhausted(error)

    def _refuse_exhausted(self, error: ResourceExhausted) -> None:
        from subscriptions.api.errors import error_body

        self._refuse(429, orjson.dumps(error_body(error)).decode(), content_type="application/json; charset=UTF-8")

    def _is_answered_directly(self, request: Request) -> bool:
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
        request.keep_alive = request.keep_alive and not self._server.is_stopping
        self._transport.write(direct_response(fields, body, keep_alive=request.keep_alive))
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
        self._release(self._answering)
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
