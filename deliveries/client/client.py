r"""The push client: POSTs over HTTP/1.1 by the ten thousand, at a few microseconds each.

    client = PushClient(loop, options=ClientOptions())
    endpoint = client.prepare("https://example.com/push")
    client.post(endpoint, b"Content-Type: application/json\r\n", body, 10.0, on_done)

A request's way: `post` -> pool of the origin -> connection -> parser -> `on_done`, all on the loop and without a task.
Only the opening of a connection is a task. Environment proxies are not used and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from weakref import WeakValueDictionary

from deliveries.client.dialer import Dialer
from deliveries.client.endpoint import Endpoint, parse_url
from deliveries.client.options import ClientOptions
from deliveries.client.pool import Pool
from deliveries.client.request import Request, Shared
from deliveries.client.resolver import Resolver
from deliveries.client.result import PushResult
from deliveries.client.tls import client_context
from deliveries.client.wheel import Wheel
from deliveries.rules.outcome import Reason
from pushhub.common.addresses import AddressGuard
from pushhub.common.pushurls import BadEndpoint, Origin

__all__ = ["BadEndpoint", "ClientOptions", "Endpoint", "PushClient", "PushResult"]

MAX_ENDPOINTS = 20_000
#: A body over this is handed to the socket by itself: below, one copy and one write is cheaper than two writes.
LARGE_BODY_BYTES = 64 * 1024


class PushClient:
    """To be used on the thread of its loop. Every post is reported once to its `on_done`, on the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        options: ClientOptions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        wheel = Wheel(loop, clock=clock, tick_s=options.tick_s)
        self._loop = loop
        self._options = options
        self._clock = clock
        self._wheel = wheel
        self._shared = Shared(loop, options=options, clock=clock, wheel=wheel)
        self._dialer = Dialer(
            loop,
            options=options,
            guard=AddressGuard(
                allow_private=options.allow_private,
                allowed_networks=options.allowed_networks,
                own_listeners=options.own_listeners,
            ),
            resolver=Resolver(
                loop,
                clock=clock,
                timeout_s=options.dns_timeout_s,
                keep_s=options.dns_cache_s,
                keep_failure_s=options.dns_failure_cache_s,
            ),
            context=client_context(ca_file=options.ca_file, verify=options.tls_verify),
        )
        self._endpoints: dict[str, Endpoint] = {}
        #: A pool lives as long as an endpoint or a connection needs it.
        self._pools: WeakValueDictionary[Origin, Pool] = WeakValueDictionary()
        self._closing = False

    @property
    def outstanding(self) -> int:
        """Posts that were not reported yet."""
        return self._shared.outstanding

    @property
    def connections(self) -> int:
        return sum(pool.connections for pool in self._pools.values())

    def prepare(self, url: str) -> Endpoint:
        """The endpoint of a URL, made once. Raises BadEndpoint, a ValueError with a bounded `fault`."""
        endpoint = self._endpoints.get(url)
        if endpoint is None:
            origin, head = parse_url(url, self._options)
            if len(self._endpoints) >= MAX_ENDPOINTS:
                del self._endpoints[next(iter(self._endpoints))]
            endpoint = self._endpoints[url] = Endpoint(origin, head=head, pool=self._pool(origin))
        return endpoint

    def post(
        self,
        endpoint: Endpoint,
        headers: bytes,
        body: bytes,
        timeout_s: float,
        on_done: Callable[[PushResult], None],
    ) -> Request:
        """Sends one POST; the answer has `timeout_s` from now on. The request returned is for `abort` alone.

        `headers` are whole lines, each ending in CRLF, without Host, Content-Length, User-Agent and Accept-Encoding.
        Raises ValueError where they would break the request in two.
        """
        if b"\r\n\r\n" in headers or (headers and not headers.endswith(b"\r\n")):
            raise ValueError("headers: give whole lines, none empty")
        now = self._clock()
        if len(body) > LARGE_BODY_BYTES:
            payload = b"%b%d\r\n%b\r\n" % (endpoint.head, len(body), headers)
            request = Request(payload, body, now, now + timeout_s, on_done)
        else:
            payload = b"%b%d\r\n%b\r\n%b" % (endpoint.head, len(body), headers, body)
            request = Request(payload, b"", now, now + timeout_s, on_done)
        self._shared.outstanding += 1
        if self._closing:
            self._loop.call_soon(self.abort, request)
        else:
            endpoint.pool.submit(request)
        return request

    def abort(self, request: Request) -> None:
        """Gives a request up; it is reported as aborted unless it was reported before."""
        if request.connection is not None:
            request.connection.abort()
        else:
            self._shared.report(request, 0, Reason.ABORTED, self._clock())

    async def close(self, *, drain_s: float) -> None:
        """Takes no more posts, waits up to `drain_s` for those outstanding, then gives up the rest."""
        self._closing = True
        if self.outstanding and drain_s > 0:
            drained = asyncio.Event()
            self._shared.drained = drained.set
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(drained.wait(), drain_s)
        dials = [task for pool in list(self._pools.values()) for task in pool.close()]
        await asyncio.gather(*dials, return_exceptions=True)
        self._shared.pace.stop()
        self._wheel.stop()

    def _pool(self, origin: Origin) -> Pool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = Pool(origin, shared=self._shared, dialer=self._dialer)
        return pool
