"""The blocking push client, for a stock Celery worker: requests sends each POST, by the rules of the asyncio client.

By itself, requests would resolve a name again after the address guard has judged its addresses, limit the time of each
read in place of the attempt's, follow redirects, and take a 102 for the final status. So the dialer opens its
connections, and the asyncio client's state machine (connection.py) reads the answers. Each push has its own connection.
"""

from __future__ import annotations

import asyncio
import io
import socket
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse
from urllib3.connection import HTTPConnection

from deliveries.client.connection import Connection
from deliveries.client.dialer import Dialer, DialFailed
from deliveries.client.headers import Headers, header_lines
from deliveries.client.options import ClientOptions
from deliveries.client.request import PushResult, Request, Shared
from deliveries.client.tls import ResumingContext, client_context
from deliveries.rules.outcome import Reason
from pushhub.common.pushurls import Origin, PushUrl, parse_push_url

PIECE_BYTES = 64 * 1024


class BlockingEndpoint(NamedTuple):
    """A URL with the headers that all its requests carry."""

    origin: Origin
    url: PushUrl
    headers: Headers


class BlockingClient:
    """Has the interface of PushClient, but `post` returns after it has called `on_done`. Any thread may use it."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._context = client_context(ca_file=options.ca_file, verify=options.tls_verify)

    def prepare(self, url: str, *, headers: Headers = ()) -> BlockingEndpoint:
        """Return an endpoint whose requests all carry these headers. Raises as PushClient does."""
        parsed = parse_push_url(url, allow_http=self._options.allow_http, allowed_ports=self._options.allowed_ports)
        header_lines(headers)
        return BlockingEndpoint(parsed.origin, parsed, headers)

    def post(
        self,
        endpoint: BlockingEndpoint,
        body: bytes,
        *,
        headers: Headers = (),
        timeout_s: float,
        may_begin: Callable[[], bool] | None = None,
        keeps_answer: bool = False,
        on_done: Callable[[PushResult], None],
    ) -> None:
        """Send one POST and report its result. It begins at once, so `may_begin` is not asked."""
        header_lines(headers)
        attempt = _Attempt(endpoint, [*endpoint.headers, *headers], timeout_s, self._options, self._context)
        attempt.answer = bytearray() if keeps_answer else None
        with requests.Session() as session:
            session.trust_env = False
            adapter = _Adapter(attempt)
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            try:
                session.post(f"http://{endpoint.url.authority}/", data=body, allow_redirects=False)
            except (DialFailed, _Unanswered) as failure:
                attempt.fail(failure.reason)
        assert attempt.result is not None
        on_done(attempt.result)


class _Unanswered(Exception):
    """The request got no complete answer. This is no OSError, which urllib3 would turn into one of its own errors."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Attempt:
    """One push: its deadline, its socket and its result. To the state machine it is the pool, transport and timer."""

    def __init__(
        self,
        endpoint: BlockingEndpoint,
        headers: Headers,
        timeout_s: float,
        options: ClientOptions,
        context: ResumingContext,
    ) -> None:
        self.endpoint = endpoint
        self.headers = [
            ("Host", endpoint.url.authority),
            ("User-Agent", options.user_agent),
            ("Accept", "*/*"),
            ("Accept-Encoding", "identity"),
            *headers,
        ]
        self.result: PushResult | None = None
        self.answer: bytearray | None = None
        self._options = options
        self._context = context
        self._started = time.monotonic()
        self._deadline = self._started + timeout_s

    def fail(self, reason: str) -> None:
        if self.result is None:
            self._note(PushResult(0, reason, (time.monotonic() - self._started) * 1000))

    def open(self) -> socket.socket:
        """Return a connected socket, with TLS for https. Raises DialFailed and _Unanswered."""
        sock = asyncio.run(self._dial())
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self.endpoint.origin.tls:
            return sock
        sock.settimeout(min(self._options.tls_timeout_s, self.seconds_left()))
        try:
            return self._context.wrap_socket(
                sock, server_hostname=self.endpoint.origin.host, suppress_ragged_eofs=False
            )
        except OSError:  # the base class of SSLError and TimeoutError too
            sock.close()
            self.seconds_left()
            raise DialFailed(Reason.TLS_FAILED) from None

    def seconds_left(self) -> float:
        """Return the time until the deadline, which has not passed. Raises _Unanswered."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise _Unanswered(Reason.DEADLINE_EXCEEDED)
        return seconds

    def read(self, sock: socket.socket) -> PushResult:
        """Read the answer to the request that was sent on this socket, and return the result."""
        me = cast(Any, self)
        machine = Connection(me, Shared(cast(Any, None), options=self._options, clock=time.monotonic, wheel=me))
        machine.connection_made(me)
        machine.send(Request(b"", b"", self._started, self._deadline, self._note, answer=self.answer))
        while self.result is None:
            self._read_some(sock, machine)
        return self.result

    async def _dial(self) -> socket.socket:
        dialer = Dialer(asyncio.get_running_loop(), options=self._options, context=self._context)
        try:
            async with asyncio.timeout(self.seconds_left()):
                return await dialer.connect(self.endpoint.origin)
        except TimeoutError:
            raise _Unanswered(Reason.DEADLINE_EXCEEDED) from None

    def _read_some(self, sock: socket.socket, machine: Connection) -> None:
        """Pass to the state machine what arrives next, or that nothing did."""
        seconds = machine.due - time.monotonic()
        try:
            if seconds <= 0:
                return machine.on_due(time.monotonic())
            sock.settimeout(seconds)
            piece = sock.recv(PIECE_BYTES)
        except TimeoutError:
            return machine.on_due(time.monotonic())
        except OSError:
            return machine.connection_lost(None)
        if piece:
            return machine.data_received(piece)
        machine.eof_received()
        return machine.connection_lost(None)

    def _note(self, result: PushResult) -> None:
        self.result = result

    def _ignore(self, *_: Any) -> None:
        """The connection ends with the attempt, whatever the state machine asks for."""

    answered = release = discarded = lost = resend = write = abort = put = drop = _ignore


class _Adapter(HTTPAdapter):
    """Gives requests the connection of one attempt."""

    def __init__(self, attempt: _Attempt) -> None:
        super().__init__()
        self._attempt = attempt

    def get_connection_with_tls_context(self, *_: Any, **__: Any) -> HTTPConnectionPool:
        pool = HTTPConnectionPool(self._attempt.endpoint.origin.host)
        pool.ConnectionCls = self._new_connection  # type: ignore[assignment]
        return pool

    def _new_connection(self, **options: Any) -> HTTPConnection:
        connection = _GuardedConnection(**options)
        connection.attempt = self._attempt
        return connection


class _GuardedConnection(HTTPConnection):
    """urllib3's connection, whose socket the dialer opens and whose answer the state machine reads."""

    attempt: _Attempt

    def connect(self) -> None:
        self.sock = self.attempt.open()

    def request(self, method: str, url: str, body: Any = None, **_: Any) -> None:  # type: ignore[override]
        """Send the URL's target as it is, and only these headers."""
        self.putrequest(method, self.attempt.endpoint.url.target, skip_host=True, skip_accept_encoding=True)
        for name, value in [*self.attempt.headers, ("Content-Length", str(len(body or b"")))]:
            self.putheader(name, value)
        self.endheaders(body)

    def send(self, data: Any) -> None:
        if self.sock is None:
            self.connect()
        left = memoryview(data)
        while left:
            self.sock.settimeout(self.attempt.seconds_left())
            try:
                left = left[self.sock.send(left[:PIECE_BYTES]) :]
            except TimeoutError:
                raise _Unanswered(Reason.DEADLINE_EXCEEDED) from None
            except OSError:
                return  # the receiver has hung up, perhaps after an answer

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        try:
            result = self.attempt.read(self.sock)
        finally:
            self.close()
        if result.reason:
            raise _Unanswered(result.reason)
        return HTTPResponse(io.BytesIO(), status=result.status, preload_content=False)
