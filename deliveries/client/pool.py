"""The keep-alive connections of one origin, and the requests that wait for one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from deliveries.client.connection import Connection, PlainConnection, TlsConnection
from deliveries.client.dialer import Dialer, DialFailed
from deliveries.client.wheel import NEVER
from deliveries.rules.outcome import Reason
from pushhub.common.pushurls import Origin

if TYPE_CHECKING:
    from deliveries.client.request import Request, Shared

log = logging.getLogger(__name__)

#: After a shortage of ports or files here, no new connection is tried for so long.
SHORTAGE_PAUSE_SECONDS = 0.25


class Pool:
    """Requests take the connection that was idle for the shortest time (LIFO), so that a quiet pool shrinks.

    Requests that find none wait in order, and each may start a dial; whichever comes first, an answered connection or a
    dialled one, takes the first in line. A dial that fails takes the first in line with it.
    """

    __slots__ = (
        "__weakref__",
        "_dialer",
        "_dials",
        "_fresh_only",
        "_is_paced",
        "_no_dial_before",
        "_open",
        "_shared",
        "_waiting",
        "idle",
        "origin",
        "tick",
    )

    def __init__(self, origin: Origin, *, shared: Shared, dialer: Dialer) -> None:
        self.origin = origin
        self.tick = NEVER
        #: In order of use; a subset of the open ones.
        self.idle: dict[Connection, None] = {}
        self._open: set[Connection] = set()
        self._shared = shared
        self._dialer = dialer
        self._dials: set[asyncio.Task[None]] = set()
        self._waiting: deque[Request] = deque()
        #: Requests to be sent again: another idle connection may be as dead as theirs was.
        self._fresh_only: deque[Request] = deque()
        self._no_dial_before = 0.0
        #: Whether the pace will ask for more dials.
        self._is_paced = False

    @property
    def connections(self) -> int:
        return len(self._open)

    def submit(self, request: Request) -> None:
        if self.idle:
            self.idle.popitem()[0].send(request)
        else:
            self._wait(request, self._waiting)
            self._grow()

    def resend(self, request: Request) -> None:
        """For a fresh connection only, from which nothing is sent again: so it is not sent a third time.

        The lost connection leaves next, which makes room.
        """
        request.connection = None
        self._wait(request, self._fresh_only)

    def release(self, connection: Connection, now: float) -> None:
        """A connection has had its whole answer and may be used again."""
        request = self._next(self._waiting)
        if request is not None:
            connection.send(request)
        else:
            self.idle[connection] = None
            connection.wait_idle(now)

    def lost(self, connection: Connection) -> None:
        self.idle.pop(connection, None)
        self._open.discard(connection)
        self._grow()

    def answered(self, transport: asyncio.Transport) -> None:
        """The first answer on a connection has come."""
        if self.origin.tls:
            ssl_object = transport.get_extra_info("ssl_object")
            self._dialer.context.keep_session(self.origin.host, ssl_object.session)

    def on_due(self, now: float) -> None:
        """Some request has waited until its deadline, or a pause after a shortage is over."""
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
        """Gives everything up: what is outstanding is reported as aborted. Returns the cancelled dials."""
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
            if request.on_done is not None:
                return request
        return None

    def _grow(self) -> None:
        """As many dials as requests wait, within the limits."""
        wanted = len(self._waiting) + len(self._fresh_only)
        if not wanted:
            return
        options = self._shared.options
        dials = min(wanted, options.max_connecting, options.max_connections - len(self._open)) - len(self._dials)
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
            log.exception("a dial failed in an unforeseen way")
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
        others = bool(self._open or self._dials)
        if failure.shortage and others:
            # The requests wait for the connections there are.
            self._no_dial_before = self._shared.clock() + SHORTAGE_PAUSE_SECONDS
        elif others:
            request = self._next(self._fresh_only) or self._next(self._waiting)
            if request is not None:
                self._shared.report(request, 0, failure.reason, self._shared.clock())
        else:
            # Nothing is open and nothing on its way: dialling again for each of those that wait would tell no more.
            self._fail_all(failure.reason)
        self._grow()

    def _fail_all(self, reason: Reason) -> None:
        requests = [*self._fresh_only, *self._waiting]
        self._fresh_only.clear()
        self._waiting.clear()
        now = self._shared.clock()
        for request in requests:
            self._shared.report(request, 0, reason, now)
