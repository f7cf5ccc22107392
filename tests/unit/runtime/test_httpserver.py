"""The HTTP server with an application of the test's own: one request after the other, whatever a client sends."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import orjson
import pytest

from pushhub.common.peers import client_of
from pushhub.common.servers import listen
from pushhub.runtime.httpserver import connection as connections
from pushhub.runtime.httpserver import reading, requests, requestthreads
from pushhub.runtime.httpserver import server as servers
from pushhub.runtime.httpserver.limits import OTHER_FILES, ByteBudget, Connections, Limits, Reservation
from pushhub.runtime.httpserver.requestthreads import RequestThreads
from pushhub.runtime.httpserver.responses import Direct
from pushhub.runtime.httpserver.server import Application, HttpServer
from tests.httpforms import CHUNKED, ENDLESS, FORMS, TOO_LARGE
from tests.integration.client.push_client import on_uvloop

LIMITS = Limits(head_seconds=30, body_seconds=30, idle_seconds=30, connections=0)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer with what the application was told about the request."""
    told = {name: value for name, value in environ.items() if isinstance(value, str)}
    body = orjson.dumps(told | {"body": environ["wsgi.input"].read().decode("latin-1")})
    start_response("200 OK", [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


class Waiting:
    """Answers as `echo` does, once a test says so."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.begun.set()
        assert self.go_on.wait(60)
        return echo(environ, start_response)


class Server(HttpServer):
    """A server that knows its clients, whose connections end before it stops."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.writers: list[asyncio.StreamWriter] = []
        self.listening = listen(("127.0.0.1", 0))

    def has_bodies(self) -> bool:
        """Whether a request has room for its body, or waits for that."""
        return bool(self.bodies._by_address or self.bodies._waiting)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection(*self.listening.getsockname(), limit=2**20)
        self.writers.append(writer)
        return reader, writer


@asynccontextmanager
async def serving(
    application: Application, *, limits: Limits = LIMITS, threads: int = 1, direct: Direct | None = None
) -> AsyncIterator[Server]:
    with RequestThreads(threads) as threads_shared:
        server = Server(application, threads=threads_shared, limits=limits, files=1000, direct=direct)
        await server.start(server.listening)
        try:
            yield server
        finally:
            for writer in server.writers:
                writer.close()
            await server.stop(seconds=5, linger_seconds=0)


async def answered(client: Client, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
    reader, _ = client
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0))) if has_body else b""
    return int(lines[0].split()[1]), headers, body


def conversation(sent: bytes, application: Application = echo, **options: Any) -> bytes:
    """Return the whole answer to a client that sends these bytes and then closes its side."""

    async def main() -> bytes:
        async with serving(application, **options) as server, asyncio.timeout(60):
            reader, writer = await server.connect()
            writer.write(sent)
            writer.write_eof()
            return await reader.read()

    return asyncio.run(main())


def told(sent: bytes) -> dict[str, Any]:
    head, _, body = conversation(sent).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n"), head
    echoed: dict[str, Any] = orjson.loads(body)
    return echoed


def test_the_application_is_told_of_the_request() -> None:
    environ = told(
        b"POST /a%20b/%C3%A9?x=1&y=%20 HTTP/1.1\r\nHost: example.com\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 5\r\nX-Two: a\r\nx-two: b\r\nCookie: a=1\r\nCookie: b=2\r\nX_Two: forged\r\n\r\nhello"
    )
    assert environ["REQUEST_METHOD"] == "POST"
    assert environ["PATH_INFO"].encode("latin-1").decode() == "/a b/é"
    assert environ["QUERY_STRING"] == "x=1&y=%20"
    assert (environ["CONTENT_TYPE"], environ["CONTENT_LENGTH"], environ["body"]) == ("text/plain", "5", "hello")
    assert (environ["HTTP_X_TWO"], environ["HTTP_COOKIE"]) == ("a,b", "a=1; b=2")
    assert (environ["REMOTE_ADDR"], environ["HTTP_HOST"]) == ("127.0.0.1", "example.com")


def test_a_target_may_name_the_host() -> None:
    environ = told(b"GET http://example.com/path?x=1 HTTP/1.1\r\nHost: example.com\r\n\r\n")
    assert (environ["PATH_INFO"], environ["QUERY_STRING"]) == ("/path", "x=1")


def test_a_body_in_chunks_arrives_with_its_length() -> None:
    environ = told(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    )
    assert (environ["CONTENT_LENGTH"], environ["body"]) == ("5", "abcde")
    assert "HTTP_TRANSFER_ENCODING" not in environ


def test_requests_that_come_together_are_answered_in_order() -> None:
    sent = b"".join(b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx" % number for number in range(50))
    answers = conversation(sent + b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    paths = [part.partition(b'"PATH_INFO":"')[2].partition(b'"')[0] for part in answers.split(b"HTTP/1.1 200 OK")[1:]]
    assert paths == [*(b"/%d" % number for number in range(50)), b"/last"]


@on_uvloop
async def test_a_connection_is_used_again_and_bytes_may_come_one_by_one() -> None:
    async with serving(echo) as server:
        client = await server.connect()
        for number in range(3):
            for byte in b"POST /%d HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab" % number:
                client[1].write(bytes([byte]))
                await client[1].drain()
            status, headers, body = await answered(client)
            assert (status, orjson.loads(body)["body"]) == (200, "ab")
            assert "connection" not in headers
            assert "date" in headers


@on_uvloop
async def test_a_thread_is_not_given_to_an_incomplete_request() -> None:
    async with serving(echo) as server:
        slow = [await server.connect() for _ in range(20)]
        for _, writer in slow:
            writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab")
        other = await server.connect()
        other[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await answered(other))[0] == 200
        for client in slow:
            client[1].write(b"c")
            assert orjson.loads((await answered(client))[2])["body"] == "abc"


@pytest.mark.parametrize("form", [*FORMS, "the preface of HTTP/2"])
def test_what_is_not_quite_http_is_refused(form: str) -> None:
    refusal = b"HTTP/1.1 400 Bad Request\r\n" if form not in TOO_LARGE else b"HTTP/1.1 431 "
    assert conversation(FORMS.get(form, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).startswith(refusal)


def test_a_request_before_nonsense_is_still_answered() -> None:
    answers = conversation(
        b"GET /first HTTP/1.1\r\nHost: a\r\n\r\nGET /second HTTP/1.1\r\nHost: a\r\n\r\nnonsense\r\n\r\n"
    )
    assert [part[:6] for part in answers.split(b"HTTP/1.1 ")] == [b"", b"200 OK", b"200 OK"]
    assert b"Connection: close" in answers.partition(b"/first")[2]


def test_a_request_that_is_refused_before_nonsense_gets_its_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(requestthreads, "MOST_WAITING", 0)
    answer = conversation(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nNONSENSE\r\n\r\n")
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 429 ") == 1
    assert not caplog.records


def test_requests_that_wait_on_a_connection_have_few_fields_together() -> None:
    request = b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20 + b"\r\n"
    answers = conversation(request * 100)
    assert 1 <= answers.count(b"HTTP/1.1 200 OK") < 30
    assert b"Connection: close" in answers


@on_uvloop
async def test_the_fields_of_answered_requests_count_no_more() -> None:
    """Given a client that always has the beginning of another request under way, then it may go on for ever."""
    request = b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n"

    async with serving(echo) as server:
        client = await server.connect()
        client[1].write(request[:10])
        for _ in range(reading.MOST_FIELDS // 3):
            client[1].write(request[10:] + request[:10])
            assert (await answered(client))[0] == 200


@pytest.mark.parametrize(("beginning", "more"), ENDLESS.values(), ids=ENDLESS)
@on_uvloop
async def test_what_does_not_end_is_refused(beginning: bytes, more: bytes) -> None:
    async with serving(echo) as server:
        client = await server.connect()
        client[1].write(beginning + more * 200)
        assert (await answered(client))[0] == 431


def test_trailers_are_dropped() -> None:
    names = [b"Authorization", b"Host", b"X-Forwarded-For", b"X-PushHub-Region", b"Content-Type"]
    trailers = b"".join(name + b": forged\r\n" for name in names)
    second = b"GET /second HTTP/1.1\r\nHost: a\r\n\r\n"
    answers = conversation(CHUNKED + b"1\r\na\r\n0\r\n" + trailers + b"\r\n" + second)
    assert answers.count(b"200 OK") == 2
    assert b"/second" in answers
    assert b"forged" not in answers


def test_small_chunks_of_a_large_body_are_no_endless_trailers() -> None:
    chunks = b"1\r\na\r\n" * 50_000
    assert told(CHUNKED + chunks + b"0\r\n\r\n")["body"] == "a" * 50_000


@on_uvloop
async def test_a_body_that_is_too_large_is_left_unread() -> None:
    async with serving(echo) as server:
        client = await server.connect()
        client[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999\r\n\r\n" + b"x" * 200_000)
        status, headers, body = await answered(client)
        assert (status, headers["connection"]) == (200, "close")
        assert orjson.loads(body)["CONTENT_LENGTH"] == "999999999"
        assert orjson.loads(body)["body"] == ""
        assert await client[0].read() == b""


@on_uvloop
async def test_a_body_in_chunks_that_grows_too_large_is_dropped() -> None:
    async with serving(echo) as server:
        client = await server.connect()
        client[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        for _ in range(12):
            client[1].write(chunk)
        _, headers, body = await answered(client)
        assert headers["connection"] == "close"
        assert int(orjson.loads(body)["CONTENT_LENGTH"]) > requests.BODY_BYTES
        assert orjson.loads(body)["body"] == ""


@on_uvloop
async def test_a_client_that_expects_100_continue_gets_it() -> None:
    async with serving(echo) as server:
        client = await server.connect()
        client[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
        assert (await answered(client))[0] == 100
        client[1].write(b"x" * 100_000)
        assert len(orjson.loads((await answered(client))[2])["body"]) == 100_000


@on_uvloop
async def test_a_large_body_waits_for_room_among_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "BODIES_BYTES_PER_ADDRESS", 150_000)

    async with serving(echo) as server:
        first, second = await server.connect(), await server.connect()
        first[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n")
        await until(server.has_bodies)
        second[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
        await until(lambda: server.bodies._waiting)
        first[1].write(b"x" * 100_000)
        assert (await answered(first))[0] == 200
        assert (await answered(second))[0] == 100
        second[1].close()
        await until(lambda: not server.has_bodies())


@pytest.mark.parametrize(
    "end", ["answered", "failed", "the client is gone", "the client is gone from a full connection"]
)
@on_uvloop
async def test_the_room_of_a_body_comes_free_however_the_request_ends(end: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        begun.set()
        go_on.wait(30)
        if end == "failed":
            raise ValueError
        if end == "the client is gone from a full connection":
            return Large(1000)(environ, start_response)
        return echo(environ, start_response)

    async with serving(application) as server:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000)
        await until(begun.is_set)
        assert server.has_bodies()
        if end == "the client is gone":
            writer.transport.abort()
        go_on.set()
        if "gone" not in end:
            await reader.readuntil(b"\r\n")
        await until(lambda: not server.has_bodies())
        writer.transport.abort()


@pytest.mark.parametrize("is_gone", [False, True])
@on_uvloop
async def test_the_room_of_a_body_comes_free_if_its_request_gets_no_thread(is_gone: bool) -> None:
    application = Waiting()
    async with serving(application) as server:
        # Given a request that has waited too long for the only thread
        busy, refused = await server.connect(), await server.connect()
        busy[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(application.begun.is_set)
        threads = server.threads._requests
        threads._wait_seconds = 0.0
        refused[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000)
        await until(lambda: threads._waiting)
        assert server.has_bodies()
        if is_gone:
            sock = refused[1].get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST in place of FIN
            refused[1].transport.abort()
            await until(lambda: len(server.connections) == 1)
        # When the thread comes free, then the request is refused, and its body takes no room
        application.go_on.set()
        if not is_gone:
            assert (await answered(refused))[0] == 429
        await until(lambda: not server.has_bodies())


@on_uvloop
async def test_a_client_that_takes_its_answer_slowly_but_steadily_gets_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MIN_BYTES_PER_SECOND", 1)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", "30000000")])
        return [b"x" * 30_000_000]

    async with serving(application) as server:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        (connection,) = server.connections
        await until(lambda: connection.deadline < reading.NEVER)
        connection.end_overdue()
        assert len(await reader.readexactly(30_000_000)) == 30_000_000


@on_uvloop
async def test_while_all_threads_are_busy_health_is_answered_and_too_many_requests_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requestthreads, "MOST_WAITING", 1)
    submit, submitted = requestthreads.RequestThreads.submit, []
    application = Waiting()

    def submit_and_note(*args: Any, **kwargs: Any) -> Any:
        future = submit(*args, **kwargs)
        submitted.append(future)
        return future

    monkeypatch.setattr(requestthreads.RequestThreads, "submit", submit_and_note)

    async with serving(application) as server:
        clients = [await server.connect() for _ in range(4)]
        for count, (_, writer) in enumerate(clients[:2], 1):
            writer.write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
            await until(
                lambda count=count: len(submitted) == count and application.begun.is_set()
            )  # the first one waits no longer
        clients[2][1].write(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        assert (await answered(clients[2]))[2] == b'{"status": "ok"}'
        assert await clients[2][0].read() == b""
        clients[3][1].write(b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        status, _, body = await answered(clients[3])
        assert (status, orjson.loads(body)["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
        application.go_on.set()
        for client in clients[:2]:
            assert (await answered(client))[0] == 200


def test_an_upgrade_is_ignored() -> None:
    answer = conversation(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_client_of_http_1_0_gets_its_answer_and_the_connection_ends() -> None:
    assert b"Connection: close\r\n" in conversation(b"GET / HTTP/1.0\r\n\r\n")


@on_uvloop
async def test_a_client_of_http_1_0_may_keep_its_connection() -> None:
    async with serving(echo) as server:
        client = await server.connect()
        for _ in range(2):
            client[1].write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (await answered(client))[1]["connection"] == "keep-alive"


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", "200 OK"), (b"GET", "304 Not Modified"), (b"GET", "204 No")])
def test_answers_without_a_body(method: bytes, status: str) -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response(status, [("X-Mine", "yes")])
        return [b"never sent"]

    answer = conversation(method + b" / HTTP/1.1\r\nHost: a\r\n\r\n", application)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status}\r\nX-Mine: yes\r\n".encode())
    assert b"Transfer-Encoding" not in head
    assert body == b""


@on_uvloop
async def test_a_client_that_sends_requests_and_reads_nothing_is_not_answered_for_ever() -> None:
    """Given answers that fit into no buffer, then further requests wait until the client has taken them."""
    count = 0

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        nonlocal count
        count += 1
        start_response("200 OK", [("Content-Length", "200000")])
        return [b"x" * 200_000]

    async with serving(application) as server:
        reader, writer = await server.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 80)
        await until(lambda: any(connection._is_sending for connection in server.connections))
        (connection,) = server.connections
        _, high = connection._transport.get_write_buffer_limits()
        assert connection._transport.get_write_buffer_size() <= high + 200_000 + 1000
        assert count < 80
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(80):
            assert (await answered((reader, writer)))[0] == 200


class Large:
    """An answer of many parts, which says when it is closed."""

    def __init__(self, parts: int, *, fails: bool = False) -> None:
        self.parts, self.fails = parts, fails
        self.parts_yielded = 0
        self.closed = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.parts):
            self.parts_yielded += 1
            yield b"x" * 100_000
        if self.fails:
            raise ValueError("half-way")

    def close(self) -> None:
        self.closed.set()


def test_an_answer_of_unknown_length_is_sent_in_chunks() -> None:
    answer = Large(20)
    head, _, body = conversation(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", answer).partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body.endswith(b"\r\n0\r\n\r\n")
    assert body.count(b"x") == 2_000_000
    assert answer.closed.is_set()


@on_uvloop
async def test_a_client_that_does_not_read_holds_no_thread_and_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MIN_BYTES_PER_SECOND", 2**30)
    answer = Large(10_000)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        return answer(environ, start_response) if environ["PATH_INFO"] == "/large" else echo(environ, start_response)

    async with serving(
        application, limits=Limits(head_seconds=30, body_seconds=1, idle_seconds=30, connections=0)
    ) as server:
        slow, other = await server.connect(), await server.connect()
        slow[1].transport.pause_reading()  # type: ignore[attr-defined]
        slow[1].write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(lambda: answer.parts_yielded > 0)
        other[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await answered(other))[0] == 200
        assert answer.parts_yielded < 1000, "the application yields the rest once the client has read what was sent"
        await until(answer.closed.is_set)
        assert answer.parts_yielded < 1000


@pytest.mark.parametrize("parts", [0, 20])
def test_an_application_that_fails_ends_the_answer(parts: int) -> None:
    answer = conversation(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Large(parts, fails=True))
    assert not answer.endswith(b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 " if not parts else b"HTTP/1.1 200 ")


@on_uvloop
async def test_a_server_that_stops_finishes_what_is_under_way() -> None:
    application = Waiting()
    async with serving(application) as server:
        client, idle = await server.connect(), await server.connect()
        client[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(application.begun.is_set)
        stopping = asyncio.create_task(server.stop(seconds=30))
        assert await idle[0].read() == b""
        application.go_on.set()
        status, headers, _ = await answered(client)
        assert (status, headers["connection"]) == (200, "close")
        await stopping


@on_uvloop
async def test_a_server_that_stops_answers_what_is_on_its_way_on_an_idle_connection() -> None:
    async with serving(echo) as server:
        busy = await server.connect()
        await until(lambda: len(server.connections) == 1)
        stopping = asyncio.create_task(server.stop(seconds=60, linger_seconds=30))
        await until(lambda: server.is_stopping)
        busy[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        status, headers, _ = await answered(busy)
        assert (status, headers["connection"]) == (200, "close")
        assert await busy[0].read() == b""
        await stopping


@on_uvloop
async def test_a_publish_that_a_stop_finds_under_way_is_told_that_its_connection_ends() -> None:
    """Its client would send the next one into a connection that is closed, and a POST is not repeated."""
    answers: list[Callable[[tuple[bytes, bytes] | None], None]] = []

    def direct(
        target: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        answer: Callable[[tuple[bytes, bytes] | None], None],
    ) -> bool:
        answers.append(answer)
        return True

    async with serving(echo, direct=direct) as server:
        client = await server.connect()
        client[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx")
        await until(lambda: answers)
        stopping = asyncio.create_task(server.stop(seconds=60, linger_seconds=30))
        await until(lambda: server.is_stopping)
        answers[0]((b"", b"{}"))
        status, headers, _ = await answered(client)
        assert (status, headers.get("connection")) == (200, "close")
        await stopping


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_connections_are_counted_by_address() -> None:
    connections = Connections(most_per_address=2, files=OTHER_FILES + 3)
    assert [connections.enter("a") for _ in range(3)] == [True, True, False]
    assert connections.enter("b")
    assert not connections.enter("c")
    connections.leave("a")
    assert connections.enter("c")


@on_uvloop
async def test_a_connection_too_many_is_refused_in_the_words_of_the_api() -> None:
    async with serving(echo, limits=replace(LIMITS, connections=1)) as server:
        first, second = [await server.connect() for _ in range(2)]
        status, fields, body = await answered(second)
        error = orjson.loads(body)["error"]
        assert (status, fields["content-type"]) == (429, "application/json; charset=UTF-8")
        assert (error["status"], error["message"]) == (
            "RESOURCE_EXHAUSTED",
            "Too many connections at once: close some, or try again later.",
        )
        first[1].write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await answered(first))[0] == 200


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_what_counts_as_one_client(address: str, client: str) -> None:
    assert client_of(address) == client


def test_bytes_are_shared_between_addresses() -> None:
    budget, granted = ByteBudget(most=10, most_per_address=6), []

    def reservation(address: str, size: int) -> Reservation:
        return Reservation(address, size, lambda: granted.append((address, size)))

    first, large = reservation("a", 5), reservation("a", 4)
    small, other = reservation("a", 1), reservation("b", 4)
    assert [budget.reserve(wanted) for wanted in (first, large, small, other)] == [True, False, True, True]
    assert granted == []
    budget.release(first)
    assert granted == [("a", 4)]
    waiting = reservation("b", 5)
    assert not budget.reserve(waiting)
    budget.release(waiting)
    budget.release(other)
    assert granted == [("a", 4)]
