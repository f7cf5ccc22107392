"""A push request, and what all parts of one client share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from deliveries.client.answer import readable_answer
from deliveries.client.options import ClientOptions
from deliveries.client.wheel import Wheel
from deliveries.rules.outcome import Verdict, verdict

TLS_BUFFER_BYTES = 64 * 1024
#: Connections per turn; 2,000 per second, a quarter of what one core can do.
AT_ONCE = 6
TURN_SECONDS = 0.003

log = logging.getLogger(__name__)


class PushResult(NamedTuple):
    """The status of a complete response, or the reason why there is none.

    `reason` is "" for a complete response. Otherwise it is a `deliveries.rules.outcome.Reason`, and `status` is 0. A
    response whose body does not match its head is incomplete, whatever its status.
    """

    status: int
    reason: str
    latency_ms: float
    #: The Retry-After of a 429 or 503; 0 without one.
    retry_after_s: float = 0.0
    #: The first bytes of an answer that is no ack, as people read them (answer.py), if they were to be kept.
    answer: str = ""


class Carrier(Protocol):
    """The connection that a request was sent on."""

    def abort(self) -> None:
        """Give up the request and close the connection."""


class Pace:
    """Limits how many connections are opened per second. Pools that get none in one turn are served in later ones.

    Opening a connection takes ten times the work of a push over an open one. If the loop opened hundreds at a time, all
    other pushes would wait, and the receiver would be just as busy accepting them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = AT_ONCE
        self._waiting: deque[Callable[[], None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def take(self, connections: int) -> int:
        """Return how many of these connections may be opened now."""
        granted = min(connections, self._left)
        self._left -= granted
        if granted and self._timer is None:
            self._timer = self._loop.call_later(TURN_SECONDS, self._turn)
        return granted

    def later(self, ask_again: Callable[[], None]) -> None:
        """Call `ask_again` in a later turn."""
        self._waiting.append(ask_again)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._waiting.clear()

    def _turn(self) -> None:
        self._timer = None
        self._left = AT_ONCE
        for _ in range(len(self._waiting)):
            if not self._left:
                return
            self._waiting.popleft()()


class Shared:
    """The loop, clock, options and number of outstanding requests that connections and pools of one client share."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        options: ClientOptions,
        clock: Callable[[], float],
        wheel: Wheel,
    ) -> None:
        self.loop = loop
        self.options = options
        self.clock = clock
        self.wheel = wheel
        self.pace = Pace(loop)
        self.outstanding = 0
        #: Outstanding requests whose answers are kept.
        self.kept = 0
        self.tls_buffer = memoryview(bytearray(TLS_BUFFER_BYTES))

    def report(self, request: Request, status: int, reason: str, now: float, *, retry_after_s: float = 0.0) -> None:
        """Report the result of a request to its caller, once; later results are ignored."""
        on_done = request.on_done
        if on_done is None:
            return
        request.on_done = request.connection = None
        self.outstanding -= 1
        answer = ""
        if request.answer is not None:
            self.kept -= 1
            if verdict(status, reason) is not Verdict.ACK:
                answer = readable_answer(bytes(request.answer))
        try:
            on_done(PushResult(status, reason, (now - request.started) * 1000, retry_after_s, answer))
        except Exception:
            log.exception("on_done of a push request failed")


@dataclass(slots=True, eq=False)
class Request:
    """The bytes to send and the callback. A request outlives its connection, as it may have to be sent again."""

    payload: bytes
    #: The body if it is too large to be copied behind the head, else empty.
    large_body: bytes
    started: float
    deadline: float
    #: None once the result has been reported.
    on_done: Callable[[PushResult], None] | None
    #: Asked right before the request is sent; None if it may always begin.
    may_begin: Callable[[], bool] | None = None
    #: Gets the first bytes of the answer; None if nobody wants them.
    answer: bytearray | None = None
    connection: Carrier | None = None
