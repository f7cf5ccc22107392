"""The keep-alive connections of one origin, and the requests that wait for a connection."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import cast

from deliveries.client.connection import Connection, PlainConnection, TlsConnection
from deliveries.client.dialer import Dialer, DialFailed
from deliveries.client.request import Request, Shared
from deliveries.client.wheel import NEVER
from deliveries.rules.outcome import Reason
from pushhub.common.pushurls import Origin

log = logging.getLogger(__name__)

#: The time without new connections after this machine ran out of ports or files.
SHORTAGE_PAUSE_SECONDS = 0.25


class Pool:
    """A pool gives each request the connection that was idle for the shortest time, so that a quiet pool shrinks.

    Requests without a connection wait in a queue, and each may start a dial. The next connection that becomes free or
    is opened takes the first request of the queue. A failed dial fails the first request of the queue.
    """

    def __init__(self, origin: Origin, *, shared: Shared, dialer: Dialer) -> None:
        self.origin = origin
        self.tick = NEVER
        #: The open connections without a request, in order of their last use.
        self._idle: dict[Connection, None] = {}
        self._open: set[Connection] = set()
        self._shared = shared
        self._dialer = dialer
        self._dials: set[asyncio.Task[None]] = set()
        self._waiting: deque[Request] = deque()
        #: Requests to be sent again, on new connections only: an idle connection may be dead too.
        self._fresh_only: deque[Request] = deque()
        self._no_dial_before = 0.0
        #: Whether the pace will call `_grow_on`.
        self._is_paced = False

    def submit(self, request: Request) -> None:
        if not self._idle:
            self._wait(request, self._waiting)
            self._grow()
        elif self._may_begin(request):
            self._idle.popitem()[0].send(request)

    def resend(self, request: Request) -> None:
        """Send the request on a new connection, from which nothing is sent again, so that it is not sent a third time.

        The lost connection is removed right after this call, which makes room for a dial.
        """
        request.connection = None
        self._wait(request, self._fresh_only)

    def release(self, connection: Connection, now: float) -> None:
        """Use a connection again that has read a complete response."""
        request = self._next(self._waiting)
        if request is not None:
            connection.send(request)
        else:
            self._idle[connection] = None
            connection.wait_idle(now)

    def discarded(self, connection: Connection) -> None:
        self._idle.pop(connection, None)

    def lost(self, connection: Connection) -> None:
        self._idle.pop(connection, None)
        self._open.discard(connection)
        self._grow()

    def answered(self, transport: asyncio.Transport) -> None:
        """Remember the TLS session of a connection once its first response has arrived."""
        if self.origin.tls:
            ssl_object = transport.get_extra_info("ssl_object")
            self._dialer.context.keep_session(self.origin.host, ssl_object.session)

    def on_due(self, now: float) -> None:
        """Report the requests that have waited until their deadlines; also called when a shortage pause is over."""
        expired: list[Request] = []
        for queue in (self._fresh_only, self._waiting):
            live = [request for request in queue if request.on_done is not None]
            expired += [request for request in live if request.deadline <= now]
            queue.clear()
            queue.extend(request for request in live if request.deadline > now)
            if queue:
                self._shared.wheel.put(self, min(request.deadline for request in queue))
        for request in expired:
            self._shared.report(request, 0, Reason.DEADLINE_EXCEEDED, now)
        self._grow()

    def close(self) -> list[asyncio.Task[None]]:
        """Report all outstanding requests as aborted, close all connections, and return the cancelled dials."""
        dials = list(self._dials)
        for task in dials:
            task.cancel()
        self._fail_all(Reason.ABORTED)
        for connection in list(self._open):
            connection.abort()
        return dials

    def _wait(self, request: Request, queue: deque[Request]) -> None:
        queue.append(request)
        self._shared.wheel.put(self, request.deadline)

    def _next(self, queue: deque[Request]) -> Request | None:
        while queue:
            request = queue.popleft()
            if request.on_done is not None and self._may_begin(request):
                return request
        return None

    def _may_begin(self, request: Request) -> bool:
        """Return whether a request may still be sent; otherwise it is reported as aborted."""
        if request.may_begin is None or request.may_begin():
            return True
        self._shared.report(request, 0, Reason.ABORTED, self._shared.clock())
        return False

    def _grow(self) -> None:
        """Start a dial for each waiting request, within the limits."""
        requests = len(self._waiting) + len(self._fresh_only)
        if not requests:
            return
        options = self._shared.options
        dials = min(requests, options.max_connecting, options.max_connections - len(self._open)) - len(self._dials)
        if dials <= 0:
            return
        if self._shared.clock() < self._no_dial_before:
            self._shared.wheel.put(self, self._no_dial_before)
            return
        granted = self._shared.pace.take(dials)
        for _ in range(granted):
            self._dials.add(self._shared.loop.create_task(self._dial()))
        if granted < dials and not self._is_paced:
            self._is_paced = True
            self._shared.pace.later(self._grow_on)

    def _grow_on(self) -> None:
        self._is_paced = False
        self._grow()

    async def _dial(self) -> None:
        failure = DialFailed(Reason.CONNECT_FAILED)
        connection = None
        try:
            connection = await self._dialer.dial(self.origin, self._new_connection)
        except DialFailed as error:
            failure = error
        except Exception:
            log.exception("a dial failed with an unexpected error")
        self._dials.discard(cast("asyncio.Task[None]", asyncio.current_task()))
        if connection is None:
            self._dial_failed(failure)
        elif connection.closed:
            self._dial_failed(DialFailed(Reason.RESET))
        else:
            self._dialled(connection)

    def _new_connection(self) -> Connection:
        return (TlsConnection if self.origin.tls else PlainConnection)(self, self._shared)

    def _dialled(self, connection: Connection) -> None:
        self._open.add(connection)
        request = self._next(self._fresh_only)
        if request is not None:
            connection.send(request)
        else:
            self.release(connection, self._shared.clock())
        self._grow()

    def _dial_failed(self, failure: DialFailed) -> None:
        has_others = bool(self._open or self._dials)
        if failure.shortage and has_others:
            # The requests wait for the existing connections.
            self._no_dial_before = self._shared.clock() + SHORTAGE_PAUSE_SECONDS
        elif has_others:
            request = self._next(self._fresh_only) or self._next(self._waiting)
            if request is not None:
                self._shared.report(request, 0, failure.reason, self._shared.clock())
        else:
            # No connection is open or being opened: another dial for each waiting request would reveal nothing new.
            self._fail_all(failure.reason)
        self._grow()

    def _fail_all(self, reason: Reason) -> None:
        requests = [*self._fresh_only, *self._waiting]
        self._fresh_only.clear()
        self._waiting.clear()
        now = self._shared.clock()
        for request in requests:
            self._shared.report(request, 0, reason, now)
