"""A connection that the test feeds: the result is the same however a response is cut, and it is reported once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deliveries.client.connection import Connection, HeadScan, PlainConnection
from deliveries.client.options import ClientOptions
from deliveries.client.request import PushResult, Request, Shared
from deliveries.client.wheel import Wheel

CRLF = b"\r\n"


class Transport:
    """Records what is written, until it is aborted."""

    def __init__(self) -> None:
        self.written = b""
        self.aborted = False

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def get_write_buffer_size(self) -> int:
        return 0


class Pool:
    """A pool of one connection."""

    def __init__(self) -> None:
        self.idle: dict[Connection, None] = {}
        self.resent: list[Request] = []

    def answered(self, transport: object) -> None: ...

    def discarded(self, connection: Connection) -> None:
        self.idle.pop(connection, None)

    def release(self, connection: Connection, now: float) -> None:
        self.idle[connection] = None

    def resend(self, request: Request) -> None:
        self.resent.append(request)

    def lost(self, connection: Connection) -> None:
        self.idle.pop(connection, None)


class NoLoop:
    """A loop in which time stands still, so that no timer fires."""

    def call_later(self, delay: float, callback: object) -> Any:
        return self

    def cancel(self) -> None: ...


class Exchange:
    """A request on a new connection, and its results."""

    def __init__(self) -> None:
        loop: Any = NoLoop()
        options = ClientOptions()
        wheel = Wheel(loop, clock=lambda: 0.0, tick_s=0.05)
        shared = Shared(loop, options=options, clock=lambda: 0.0, wheel=wheel)
        pool: Any = Pool()
        self.pool = pool
        self.transport: Any = Transport()
        self.results: list[PushResult] = []
        self.connection = PlainConnection(pool, shared)
        self.connection.connection_made(self.transport)
        shared.outstanding = 1
        self.connection.send(Request(b"POST", b"", 0.0, 10.0, self.results.append))

    def feed(self, pieces: list[bytes]) -> None:
        for piece in pieces:
            if not self.transport.aborted:
                self.connection.data_received(piece)

    def end(self) -> None:
        if not self.transport.aborted:
            self.connection.eof_received()
        self.connection.connection_lost(None)

    def outcome(self) -> tuple[int | str, bool]:
        """Return the result and whether the connection may be used again, as of before the connection ends."""
        reused = bool(self.pool.idle)
        self.end()
        assert len(self.results) == 1
        return self.results[0].reason or self.results[0].status, reused


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True) if a != b]


NAMES = st.sampled_from(
    [b"Server: x", b"content-length-x: 9", b"X: content-length: 3", b"x-transfer-encoding: 9", b"Connection: close"]
)
HEADERS = st.lists(NAMES, max_size=3).map(lambda lines: b"".join(line + CRLF for line in lines))
INTERIM = st.lists(
    st.sampled_from([b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 103 Hints\r\nContent-Length: 7\r\n"]), max_size=2
).map(lambda heads: b"".join(head + CRLF for head in heads))
BODY = st.binary(max_size=30) | st.just(b"\r\n\r\nX\r\nContent-Length: 5\r\n\r\n")
CUTS = st.lists(st.integers(0, 400), max_size=12)


def with_length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


def chunked(body: bytes) -> bytes:
    chunks = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def until_the_end(body: bytes) -> bytes:
    return CRLF + body


@given(INTERIM, HEADERS, BODY, st.sampled_from([with_length, chunked, until_the_end]), CUTS)
@example(b"", b"", b"\r\nContent-Length: 5\r\n", until_the_end, [17])
def test_a_complete_response_has_its_status_whatever_the_pieces(
    interim: bytes, headers: bytes, body: bytes, framing: Any, cuts: list[int]
) -> None:
    exchange = Exchange()
    if b"Connection: close" in headers:
        interim = b""
    answer = interim + b"HTTP/1.1 200 OK\r\n" + headers + framing(body)
    exchange.feed(split(answer, cuts))
    reused = framing is not until_the_end and b"Connection: close" not in headers
    assert exchange.outcome() == (200, reused)


@given(HEADERS, st.binary(min_size=1, max_size=30), st.sampled_from([with_length, chunked]), CUTS, st.integers(1, 500))
def test_a_truncated_response_does_not_count(
    headers: bytes, body: bytes, framing: Any, cuts: list[int], short: int
) -> None:
    exchange = Exchange()
    answer = b"HTTP/1.1 200 OK\r\n" + headers + framing(body)
    cut = answer[: -(1 + short % len(answer))]
    exchange.feed(split(cut, cuts))
    outcome, reused = exchange.outcome()
    assert outcome in {"body_incomplete", "reset"}
    assert not reused


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        (b"HTTP/1.1 429 Slow\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", 30),
        (b"HTTP/1.1 503 Away\r\nretry-after:7\r\nContent-Length: 0\r\n\r\n", 7),
        (b"HTTP/1.1 103 Hints\r\nRetry-After: 9\r\n\r\nHTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n", 0),
        (b"HTTP/1.1 429 Slow\r\nContent-Length: 21\r\n\r\n\r\nRetry-After: 9\r\n\r\nx", 0),
        (b"HTTP/1.1 500 Bad\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", 0),
        (b"HTTP/1.1 200 OK\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n", 0),
    ],
)
def test_a_refusal_says_when_to_come_back(answer: bytes, seconds: float) -> None:
    exchange = Exchange()
    exchange.feed([answer])
    exchange.end()
    assert exchange.results[0].retry_after_s == seconds


def test_a_connections_next_response_does_not_inherit_the_retry_after() -> None:
    exchange = Exchange()
    exchange.feed([b"HTTP/1.1 429 Slow\r\nRetry-After: 30\r\nContent-Length: 0\r\n\r\n"])
    exchange.connection.send(Request(b"POST", b"", 0.0, 10.0, exchange.results.append))
    exchange.feed([b"HTTP/1.1 429 Slow\r\nContent-Length: 0\r\n\r\n"])
    assert [result.retry_after_s for result in exchange.results] == [30, 0]


def test_the_limit_of_the_head_counts_interim_heads_too() -> None:
    filler = b"X: " + b"a" * 40_000
    exchange = Exchange()
    exchange.feed([b"HTTP/1.1 100 Continue\r\n" + filler + b"\r\n\r\n" + b"HTTP/1.1 200 OK\r\n" + filler])
    assert exchange.results[0].reason == "header_too_large"
    assert exchange.transport.aborted


@given(st.binary(max_size=200), CUTS)
def test_garbage_is_reported_once_and_raises_nothing(garbage: bytes, cuts: list[int]) -> None:
    exchange = Exchange()
    exchange.feed(split(garbage, cuts))
    exchange.outcome()


@given(st.lists(st.tuples(st.integers(0, 120), st.integers(0, 255)), max_size=4), CUTS)
def test_a_spoilt_answer_is_reported_once_and_raises_nothing(spoils: list[tuple[int, int]], cuts: list[int]) -> None:
    answer = bytearray(
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    for place, byte in spoils:
        answer[place % len(answer)] = byte
    exchange = Exchange()
    exchange.feed(split(bytes(answer), cuts))
    exchange.outcome()


def test_a_discarded_connection_is_no_longer_idle() -> None:
    exchange = Exchange()
    exchange.feed([b"HTTP/1.1 204 No Content\r\n\r\n"])
    assert exchange.pool.idle
    exchange.feed([b"HTTP/1.1"])
    assert exchange.transport.aborted
    assert not exchange.pool.idle


@example(b"HTTP/1.1 103 Hints\r\nContent-Length: 7\r\n\r\n", b"A: b\r\n", [39])
@given(INTERIM, st.sampled_from([b"A: b\r\n", b"CONTENT-LENGTH: 9\r\n", b"Transfer-Encoding: x\r\n"]), CUTS)
def test_head_scan(interim: bytes, header: bytes, cuts: list[int]) -> None:
    """The scan gets the number of interim heads that end in each piece, as the connection passes it on."""
    head = interim + b"HTTP/1.1 200 OK\r\nServer: x\r\n" + header + CRLF
    interim_ends = [i + 4 for i in range(len(interim)) if interim[i : i + 4] == b"\r\n\r\n"]
    scan, fed = HeadScan(), 0
    for piece in split(head, cuts):
        scan.feed(piece, sum(fed < end <= fed + len(piece) for end in interim_ends))
        fed += len(piece)
        assert len(scan._tail) <= 19
    assert scan.has_length == (header != b"A: b\r\n")
