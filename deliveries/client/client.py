"""The push client: tens of thousands of POSTs per second over HTTP/1.1.

    client = PushClient(loop, options=ClientOptions())
    endpoint = client.prepare("https://example.com/push", headers=[("Content-Type", "application/json")])
    client.post(endpoint, body, timeout_s=10.0, on_done=on_done)

A request takes the path `post` -> pool of the origin -> connection -> parser -> `on_done`, on the loop, without a task.
Only opening a connection is a task. Proxies from the environment are not used, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from deliveries.client.dialer import Dialer
from deliveries.client.options import ClientOptions
from deliveries.client.pool import Pool
from deliveries.client.request import PushResult, Request, Shared
from deliveries.client.tls import ResumingContext, client_context
from deliveries.client.wheel import Wheel
from deliveries.rules.outcome import Reason
from pushhub.common.pushurls import BadEndpoint, Origin, parse_push_url

__all__ = ["BadEndpoint", "ClientOptions", "Endpoint", "PushClient", "PushResult"]

#: Request headers in the client's interface; on the wire they are lines of bytes.
Headers = Sequence[tuple[str, str]]

#: Headers that the client writes itself, or that would change where a request ends.
OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")

#: A larger body is written by itself; for a smaller one a copy and one write are cheaper than two writes.
LARGE_BODY_BYTES = 64 * 1024
#: Answers that are kept at once while they arrive: 4 MB.
MAX_KEPT = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A URL with the headers that all its requests carry, ready to be posted to."""

    origin: Origin
    #: From the request line up to `Content-Length: `.
    head: bytes
    #: The lines of the caller's headers.
    headers: bytes
    #: None if each client that posts to it has its own.
    pool: Pool | None


def header_lines(headers: Headers) -> bytes:
    """Return the lines of these headers, each with its CRLF.

    Raises ValueError for a header that the client writes itself or that could break a request in two.
    """
    for name, value in headers:
        if not _NAME.fullmatch(name) or name.lower() in OWN_HEADERS or not _VALUE.fullmatch(value):
            raise ValueError(f"headers: {name!r} is not a header that a request may have")
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("ascii")


def parse_url(url: str, options: ClientOptions) -> tuple[Origin, bytes]:
    """Return the origin, and the head of its requests up to `Content-Length: `. Raises BadEndpoint."""
    parsed = parse_push_url(url, allow_http=options.allow_http, allowed_ports=options.allowed_ports)
    head = (
        f"POST {parsed.target} HTTP/1.1\r\nHost: {parsed.authority}\r\nUser-Agent: {options.user_agent}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Length: "
    )
    return parsed.origin, head.encode("ascii")


class PushClient:
    """Use a client on the thread of its loop only. It reports every post once, to `on_done`, on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        options: ClientOptions,
        context: ResumingContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        wheel = Wheel(loop, clock=clock, tick_s=options.tick_s)
        self._loop = loop
        self._options = options
        self._clock = clock
        self._wheel = wheel
        self._shared = Shared(loop, options=options, clock=clock, wheel=wheel)
        context = context or client_context(ca_file=options.ca_file, verify=options.tls_verify)
        self._dialer = Dialer(loop, options=options, context=context, clock=clock)
        #: A pool lives as long as an endpoint or a connection refers to it.
        self._pools: WeakValueDictionary[Origin, Pool] = WeakValueDictionary()
        self._closing = False

    @property
    def outstanding(self) -> int:
        """The number of posts that have not been reported yet."""
        return self._shared.outstanding

    def prepare(self, url: str, *, headers: Headers = ()) -> Endpoint:
        """Return an endpoint whose requests all carry these headers.

        Raises BadEndpoint, a ValueError with a bounded `fault`, for the URL, and ValueError for the headers.
        """
        origin, head = parse_url(url, self._options)
        return Endpoint(origin, head=head, headers=header_lines(headers), pool=self._pool(origin))

    def post(
        self,
        endpoint: Endpoint,
        body: bytes,
        *,
        headers: Headers = (),
        timeout_s: float,
        may_begin: Callable[[], bool] | None = None,
        keeps_answer: bool = False,
        on_done: Callable[[PushResult], None],
    ) -> Request:
        """Send one POST, with these headers besides those of the endpoint.

        The response must arrive within `timeout_s` from now on. The request is aborted if `may_begin`, which is asked
        right before it is sent, returns false. With `keeps_answer` the result has the beginning of a failing answer,
        unless MAX_KEPT others are kept now. The returned request is for `abort` only. Raises ValueError for headers
        that a request may not have.
        """
        lines = endpoint.headers + header_lines(headers) if headers else endpoint.headers
        now = self._clock()
        answer = bytearray() if keeps_answer and self._shared.kept < MAX_KEPT else None
        large_body = body if len(body) > LARGE_BODY_BYTES else b""
        payload = b"%b%d\r\n%b\r\n%b" % (endpoint.head, len(body), lines, b"" if large_body else body)
        request = Request(payload, large_body, now, now + timeout_s, on_done, may_begin, answer)
        self._shared.outstanding += 1
        self._shared.kept += answer is not None
        if self._closing:
            self._loop.call_soon(self.abort, request)
        else:
            (endpoint.pool or self._pool(endpoint.origin)).submit(request)
        return request

    def abort(self, request: Request) -> None:
        """Give up a request, and report it as aborted unless it has been reported already."""
        if request.connection is not None:
            request.connection.abort()
        else:
            self._shared.report(request, 0, Reason.ABORTED, self._clock())

    async def close(self) -> None:
        """Accept no more posts, and give up the outstanding ones."""
        self._closing = True
        dials = [task for pool in list(self._pools.values()) for task in pool.close()]
        await asyncio.gather(*dials, return_exceptions=True)
        self._shared.pace.stop()
        self._wheel.stop()

    def _pool(self, origin: Origin) -> Pool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin, shared=self._shared, dialer=self._dialer)
        return pool
