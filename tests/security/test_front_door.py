"""Raw sockets against the two ports that serve REST: what no client sends, what never ends, and who it comes from."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from pushhub.runtime.httpserver import forwarding
from subscriptions.models.iam import AuditEntry
from tests.httpforms import CHUNKED, ENDLESS, FORMS, GET, HOST
from tests.ports import wait_for
from tests.rawsockets import WHOLE, Ports, ports, received

pytestmark = pytest.mark.any_database

PORTS = ["web", "grpc"]
JSON = b"Content-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
SENT_BYTES = 20_000_000


@pytest.fixture(scope="module")
def started(django_db_setup: None, redis_server: str) -> Iterator[Ports]:
    """Start servers that cut nobody off because of the time, so that it is the other bounds that hold."""
    patient = dict.fromkeys(("PUSHHUB_HEAD_SECONDS", "PUSHHUB_BODY_SECONDS", "PUSHHUB_IDLE_SECONDS"), "600")
    with ports(redis_server, PUSHHUB_WEB_WORKERS="1", **patient) as both:
        yield both


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_other_servers_may_read_differently_is_refused(started: Ports, form: str, port: str) -> None:
    with started.connect(port) as client:
        client.sendall(FORMS[form])
        answer = received(client)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 ")), answer
    assert b"\r\nConnection: close\r\n" in answer
    assert b"HTTP/1.1 200" not in answer


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("what", ENDLESS)
def test_what_never_ends_is_cut_off_and_takes_no_memory(started: Ports, what: str, port: str) -> None:
    beginning, more = ENDLESS[what]
    before = started.web.forget_peak()
    with started.connect(port) as client:
        client.sendall(beginning)
        with contextlib.suppress(ConnectionError):
            for _ in range(SENT_BYTES // len(more)):
                client.sendall(more)
        assert received(client)[:13] in (b"HTTP/1.1 431 ", b"")
    assert started.status(port) == 200
    assert started.web.peak_mb - before < 20, "trailers took 480 MB before"


@pytest.mark.parametrize("port", PORTS)
def test_many_half_heads_of_tiny_fields_take_little_memory(started: Ports, port: str) -> None:
    before = started.web.forget_peak()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(started.connect(port)) for _ in range(100)]
        for client in clients:
            client.sendall(GET + b"A:\r\n" * 15_000)
        for client in clients:
            assert received(client).startswith(b"HTTP/1.1 431 ")
    assert started.web.peak_mb - before < 30, "172 MB before"


@pytest.mark.parametrize("port", PORTS)
def test_a_body_in_tiny_chunks_takes_no_more_memory_than_its_bytes(started: Ports, port: str) -> None:
    before = started.web.forget_peak()
    with started.connect(port) as client:
        client.sendall(CHUNKED)
        for _ in range(15):
            client.sendall(b"2\r\nab\r\n" * 100_000)
        client.sendall(b"0\r\n\r\n")
        assert client.recv(12).startswith(b"HTTP/1.1 4")
    assert started.web.peak_mb - before < 40, "199 MB before"


@pytest.mark.parametrize("port", PORTS)
def test_requests_that_wait_on_a_connection_take_little_memory(started: Ports, port: str) -> None:
    before = started.web.forget_peak()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(started.connect(port)) for _ in range(20)]
        for client in clients:
            client.sendall(WHOLE.replace(b"/healthz", b"/") * 5_000)
        for client in clients:
            answers = received(client)
            assert 0 < answers.count(b"HTTP/1.1 200 OK") < 5_000
            assert b"Connection: close" in answers
    assert started.web.peak_mb - before < 30


@pytest.mark.parametrize("port", PORTS)
def test_half_heads_of_one_address_take_the_memory_of_their_bytes(started: Ports, port: str) -> None:
    before = started.web.forget_peak()
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(started.connect(port)).sendall(GET + b"X: " + b"a" * 60_000)
        assert started.status(port) == 200
        assert started.web.peak_mb - before < 120, "24 MB were sent"


@pytest.mark.parametrize("port", PORTS)
def test_trailers_are_no_header_fields(transactional_db: None, redis_url: str, port: str) -> None:
    """Given a call that each of these fields would change, when they come as trailers, then they change nothing."""
    names = (b"Authorization: Bearer forged", b"Host: evil.example.com", b"X-PushHub-Region: nowhere")
    with ports(redis_url, PUSHHUB_WEB_WORKERS="1") as started:
        for number, trailer in enumerate((*names, b"X-Forwarded-For: 192.0.2.9", b"X-HTTP-Method-Override: DELETE")):
            request = b"PUT /v1/projects/shop/topics/orders-%d HTTP/1.1\r\n" % number + HOST + JSON
            with started.connect(port, source="127.0.0.2") as client:
                client.sendall(request + b"2\r\n{}\r\n0\r\n" + trailer + b"\r\n\r\n")
                assert received(client).startswith(b"HTTP/1.1 200 ")
    assert set(AuditEntry.objects.values_list("address", flat=True)) == {"127.0.0.2"}


@pytest.mark.parametrize("port", PORTS)
def test_many_clients_of_a_port_are_many_clients(transactional_db: None, redis_url: str, port: str) -> None:
    """Given clients that have fewer connections than one may have, but more together, then all are answered."""
    with (
        ports(redis_url, PUSHHUB_CLIENT_CONNECTIONS="20", PUSHHUB_IDLE_SECONDS="600") as started,
        contextlib.ExitStack() as stack,
    ):
        for number in range(2, 12):
            for _ in range(10):
                client = stack.enter_context(started.connect(port, source=f"127.0.0.{number}"))
                client.sendall(WHOLE)
                assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert started.status("web") == started.status("grpc") == 200


def test_the_web_server_counts_connections_of_both_ports_by_their_true_client(
    transactional_db: None, redis_url: str
) -> None:
    """Given the line that only the gRPC port can make, then it is the named client that has too many connections."""
    with (
        ports(
            redis_url, PUSHHUB_CLIENT_CONNECTIONS="5", PUSHHUB_IDLE_SECONDS="600", PUSHHUB_WEB_WORKERS="1"
        ) as started,
        contextlib.ExitStack() as stack,
    ):
        line = forwarding.client_line("192.0.2.1", is_secure=False)

        def connected() -> socket.socket:
            client = stack.enter_context(started.connect("web"))
            client.sendall(line + WHOLE)
            return client

        for _ in range(5):
            assert connected().recv(15) == b"HTTP/1.1 200 OK"
        assert received(connected()).startswith(b"HTTP/1.1 429 ")
        wait_for(lambda: started.status("web") == 200, what="others are answered")
