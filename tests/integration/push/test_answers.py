"""The push client against every kind of answer, well-formed or not (issue 3, "What bad input gets")."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.integration.client.push_client import client_of, connections_of, eventually, on_uvloop, outcome
from tests.misbehaving import NO_CONTENT, Misbehaving, Peer, answering

pytestmark = pytest.mark.any_database

V = b"HTTP/1.1 "
OK = V + b"200 OK\r\n"

#: The answer on a connection that stays open; the result; whether the connection is used again.
KEPT_OPEN = {
    "204": (NO_CONTENT, 204, True),
    "204 without a phrase": (V + b"204\r\n\r\n", 204, True),
    "201 with a length": (V + b"201 Created\r\nContent-Length: 5\r\n\r\nhello", 201, True),
    "200 with an empty body": (OK + b"Content-Length: 0\r\n\r\n", 200, True),
    "202 chunked": (V + b"202 A\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 202, True),
    "chunked with extension and trailer": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nX: y\r\n\r\n",
        200,
        True,
    ),
    "304 with a length and no body": (V + b"304 Not Modified\r\nContent-Length: 5\r\n\r\n", 304, True),
    "404 with a body": (V + b"404 Not Found\r\nContent-Length: 3\r\n\r\nno!", 404, True),
    "redirect": (V + b"302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302, True),
    "500": (V + b"500 Oops\r\nContent-Length: 0\r\n\r\n", 500, True),
    "HTTP/1.0 keep-alive": (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 200, True),
    "100 then 204": (V + b"100 Continue\r\n\r\n" + NO_CONTENT, 204, True),
    "103 then 204": (V + b"103 Early Hints\r\nLink: </x>\r\n\r\n" + NO_CONTENT, 204, True),
    "102 then 204": (V + b"102 Processing\r\n\r\n" + NO_CONTENT, 204, True),
    "102 then 500": (V + b"102 Processing\r\n\r\n" + V + b"500 Oops\r\nContent-Length: 0\r\n\r\n", 500, True),
    "Connection: close": (OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n", 200, False),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, False),
    "surplus answer": (NO_CONTENT + V + b"500 Oops\r\n\r\n", 204, False),
    "surplus body of a 204": (V + b"204 No\r\nContent-Length: 5\r\n\r\nhello", 204, False),
    "body longer than its length": (OK + b"Content-Length: 2\r\n\r\nokay", 200, False),
    "102 alone": (V + b"102 Processing\r\n\r\n", 102, False),
    "102 with a length of 0": (V + b"102 Processing\r\nContent-Length: 0\r\n\r\n", 102, False),
    "102 with a body": (V + b"102 Processing\r\nContent-Length: 2\r\n\r\nok", 102, False),
    "102 then garbage": (V + b"102 Processing\r\n\r\nHTTP/1.1 banana\r\n\r\n", 102, False),
    "101": (V + b"101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "invalid_response", False),
    "1xx flood": (V + b"100 Continue\r\n\r\n", "invalid_response", False),
    "garbage": (b"\x00\xff\xfe banana", "invalid_response", False),
    "another protocol": (b"220 mail.example ESMTP\r\n", "invalid_response", False),
    "HTTP/0.9": (b"<html>ok</html>", "invalid_response", False),
    "HTTP/0.9 said": (b"HTTP/0.9 200 OK\r\n\r\n", "invalid_response", False),
    "HTTP/2 said": (b"HTTP/2.0 200 OK\r\n\r\n", "invalid_response", False),
    "HTTP/2 settings": (b"\x00\x00\x00\x04\x00\x00\x00\x00\x00", "invalid_response", False),
    "RTSP": (b"RTSP/1.0 200 OK\r\n\r\n", "invalid_response", False),
    "a status of four digits": (V + b"2000 OK\r\n\r\n", "invalid_response", False),
    "a status under 100": (V + b"099 OK\r\nContent-Length: 0\r\n\r\n", "invalid_response", False),
    "a status in words": (V + b"fine\r\n\r\n", "invalid_response", False),
    "a header without a colon": (OK + b"banana\r\n\r\n", "invalid_response", False),
    "a header with NUL": (OK + b"A: \x00\r\n\r\n", "invalid_response", False),
    "two lengths": (OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", "invalid_response", False),
    "length and chunked": (
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "invalid_response",
        False,
    ),
    "a negative length": (OK + b"Content-Length: -1\r\n\r\n", "invalid_response", False),
    "a length of 24 digits": (OK + b"Content-Length: 999999999999999999999999\r\n\r\n", "invalid_response", False),
    "a chunk of bad size": (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "invalid_response", False),
    "a chunk longer than its size": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nokay\r\n",
        "invalid_response",
        False,
    ),
}

#: The answer on a connection that is then closed, and the result.
CLOSED = {
    "nothing": (b"", "reset"),
    "half a head": (V + b"204 No Con", "reset"),
    "half a version": (b"HTT", "reset"),
    "body that ends with the connection": (OK + b"\r\nhello", 200),
    "no body, ends with the connection": (OK + b"\r\n", 200),
    "the same in HTTP/1.0": (b"HTTP/1.0 200 OK\r\n\r\nhello", 200),
    "body with a header's name in it": (OK + b"\r\nX\r\nContent-Length: 99\r\n\r\n", 200),
    "body shorter than its length": (OK + b"Content-Length: 9\r\n\r\nhello", "body_incomplete"),
    "the same, and Connection: close": (
        OK + b"Connection: close\r\ncontent-length:9\r\n\r\nhello",
        "body_incomplete",
    ),
    "chunks without an end": (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", "body_incomplete"),
    "102": (V + b"102 Processing\r\n\r\n", 102),
    "102 and half a head": (V + b"102 Processing\r\n\r\nHTTP/1.1 50", 102),
    "102 and half a body": (V + b"102 P\r\n\r\n" + OK + b"Content-Length: 9\r\n\r\nhello", "body_incomplete"),
    "100 only": (V + b"100 Continue\r\n\r\n", "reset"),
    "an interim length, then a body that ends so": (
        V + b"103 Early\r\nContent-Length: 9\r\n\r\n" + OK + b"\r\nhello",
        200,
    ),
}


@pytest.mark.parametrize("dripped", [False, True], ids=["whole", "dripped"])
@pytest.mark.parametrize("name", KEPT_OPEN)
@on_uvloop
async def test_answer_of_a_connection_that_stays_open(name: str, dripped: bool) -> None:
    answer, expected, reused = KEPT_OPEN[name]
    flood = name == "1xx flood"

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            for piece in [answer[i : i + 1] for i in range(len(answer))] if dripped else [answer]:
                await peer.send(piece)
            while flood:
                await peer.send(answer)

    async with Misbehaving(script) as server, client_of(processing_grace_s=0.1 if expected == 102 else 1) as client:
        assert await outcome(client, server.url) == expected
        assert await outcome(client, server.url) == expected

    assert server.connections == (1 if reused else 2)
    assert len(server.requests) == 2


@pytest.mark.parametrize("dripped", [False, True], ids=["whole", "dripped"])
@pytest.mark.parametrize("name", CLOSED)
@on_uvloop
async def test_answer_of_a_connection_that_closes(name: str, dripped: bool) -> None:
    answer, expected = CLOSED[name]

    async def script(peer: Peer) -> None:
        await peer.request()
        for piece in [answer[i : i + 1] for i in range(len(answer))] if dripped else [answer]:
            await peer.send(piece)

    async with Misbehaving(script) as server, client_of(processing_grace_s=1) as client:
        assert await outcome(client, server.url) == expected

    assert len(server.requests) == 1


@pytest.mark.parametrize("second", [204, 503])
@on_uvloop
async def test_a_final_status_within_the_grace_decides_over_the_102(second: int) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(V + b"102 Processing\r\n\r\n")
        await peer.send(V + b"%d X\r\nContent-Length: 0\r\n\r\n" % second)
        await peer.hang()

    async with Misbehaving(script) as server, client_of(processing_grace_s=1) as client:
        assert await outcome(client, server.url) == second


@on_uvloop
async def test_a_102_is_the_ack_when_the_connection_is_reset_after_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(V + b"102 Processing\r\n\r\n")
        peer.reset()

    async with Misbehaving(script) as server, client_of(processing_grace_s=1) as client:
        assert await outcome(client, server.url) in {102, "reset"}  # RST may overtake the 102 in the socket


@on_uvloop
async def test_a_102_repeated_for_ever_is_the_ack_after_one_grace() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        while True:
            await peer.send(V + b"102 Processing\r\n\r\n")

    async with Misbehaving(script) as server, client_of(processing_grace_s=0.05) as client:
        assert await outcome(client, server.url) == 102


@on_uvloop
async def test_a_reset_in_a_body_that_ends_with_the_connection_cuts_it_short() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"\r\nhello")
        await peer.head()  # never comes: the test resets the connection once the answer has begun

    async with Misbehaving(script) as server, client_of() as client:
        results = []
        client.post(client.prepare(server.url), b"{}", timeout_s=10, on_done=results.append)
        await eventually(lambda: server.peers and server.peers[0].sent)
        await eventually(lambda: connections_of(client))
        server.peers[0].reset()
        await eventually(lambda: results)
    assert results[0].reason in {"body_incomplete", "reset"}


@on_uvloop
async def test_a_header_without_end_is_too_large() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        while True:
            await peer.send(b"X-Filler: " + b"a" * 1000 + b"\r\n")

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url) == "header_too_large"


@pytest.mark.parametrize(("size", "expected"), [(60_000, 204), (70_000, "header_too_large")])
@on_uvloop
async def test_a_head_may_take_64_kilobytes(size: int, expected: int | str) -> None:
    answer = V + b"204 No Content\r\nX-Filler: " + b"a" * size + b"\r\n\r\n"

    async with Misbehaving(answering(answer)) as server, client_of() as client:
        assert await outcome(client, server.url) == expected


@on_uvloop
async def test_the_limit_of_the_head_does_not_count_the_body() -> None:
    answer = OK + b"Content-Length: 200000\r\n\r\n" + b"a" * 200_000

    async with Misbehaving(answering(answer)) as server, client_of() as client:
        assert await outcome(client, server.url) == 200
        assert await outcome(client, server.url) == 200
    assert server.connections == 1


@pytest.mark.parametrize("framing", [b"Transfer-Encoding: chunked\r\n", b"Content-Length: 99999999999\r\n", b""])
@on_uvloop
async def test_a_body_without_end_is_too_large(framing: bytes) -> None:
    piece = b"1000\r\n" + b"a" * 4096 + b"\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + framing + b"\r\n")
        while True:
            await peer.send(piece)

    async with Misbehaving(script) as server, client_of(body_limit_bytes=64 * 1024) as client:
        assert await outcome(client, server.url) == "body_too_large"


@on_uvloop
async def test_a_dripping_body_is_given_up_before_the_ack_deadline() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + b"Content-Length: 1000000\r\n\r\n")
        await peer.hang()

    async with Misbehaving(script) as server, client_of(body_timeout_s=0.05) as client:
        assert await outcome(client, server.url) == "body_timeout"


@pytest.mark.parametrize("begin", [b"", V + b"200 OK\r\nX: ", V + b"100 Continue\r\n\r\n", OK + b"\r\nhello"])
@on_uvloop
async def test_the_ack_deadline_ends_every_incomplete_response(begin: bytes) -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(begin)
        await peer.hang()

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url, timeout_s=0.05) == "deadline_exceeded"
        assert connections_of(client) == 0 or client.outstanding == 0


@pytest.mark.parametrize("connection", [b"", b"Connection: close\r\n"])
@on_uvloop
async def test_a_response_that_arrives_before_the_body_was_sent(connection: bytes) -> None:
    """The rest of the body is not sent, and the connection is not used again."""

    async def script(peer: Peer) -> None:
        await peer.head()
        await peer.send(V + b"413 Too Large\r\nContent-Length: 0\r\n" + connection + b"\r\n")
        await peer.hang()

    async with Misbehaving(script) as server, client_of() as client:
        assert await outcome(client, server.url, b"a" * 8_000_000) == 413
        assert await outcome(client, server.url, b"a" * 8_000_000) == 413
    assert server.connections == 2


@on_uvloop
async def test_a_large_body_arrives_whole() -> None:
    body = bytes(range(256)) * 4000
    async with Misbehaving(answering(NO_CONTENT)) as server, client_of() as client:
        assert await outcome(client, server.url, body) == 204
        assert await outcome(client, server.url, body) == 204
    assert server.requests == [body, body]
    assert server.connections == 1


@pytest.mark.parametrize(("kind", "expected"), [("head", "reset"), ("body", 200), ("chunks", "body_incomplete")])
@on_uvloop
async def test_memory_stays_flat_while_a_receiver_pours(kind: str, expected: int | str) -> None:
    """The receiver sends 16 MB; the client may hold no more than one read of the socket."""
    framing = {"head": b"X-Endless: ", "body": b"\r\n", "chunks": b"Transfer-Encoding: chunked\r\n\r\n"}[kind]
    piece = b"4000\r\n" + b"a" * 0x4000 + b"\r\n" if kind == "chunks" else b"a" * 0x4000
    limit = 64 * 1024 * 1024

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK + framing)
        while peer.sent < 16_000_000:
            await peer.send(piece)

    async with Misbehaving(script) as server, client_of(header_limit_bytes=limit, body_limit_bytes=limit) as client:
        tracemalloc.start()
        try:
            assert await outcome(client, server.url) == expected
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert server.peers[0].sent >= 16_000_000
    assert peak < 3_000_000
