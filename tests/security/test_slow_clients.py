"""Clients that are slow, silent or many, on the port of REST and on the one it shares with gRPC."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.rawsockets import WHOLE, Ports, ports, received

pytestmark = pytest.mark.any_database

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
HALF_A_BODY = b"POST /token HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n\r\nx"
PATIENT = {"PUSHHUB_HEAD_SECONDS": "600", "PUSHHUB_BODY_SECONDS": "600", "PUSHHUB_WEB_WORKERS": "1"}


@pytest.fixture(scope="module")
def patient(django_db_setup: None, redis_server: str) -> Iterator[Ports]:
    """Start servers that cut no client off while a test runs."""
    with ports(redis_server, **PATIENT) as started:
        yield started


def answer(client: socket.socket) -> bytes:
    """Request /healthz and return the answer."""
    client.sendall(WHOLE)
    data = b""
    while not data.endswith(b"}"):
        more = client.recv(65536)
        assert more, data
        data += more
    return data


@pytest.mark.parametrize("port", ["web", "grpc"])
@pytest.mark.parametrize("sent", [HALF_A_HEAD, HALF_A_BODY, b""], ids=["head", "body", "nothing"])
def test_others_are_answered_while_many_requests_are_incomplete(patient: Ports, port: str, sent: bytes) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(patient.connect(port)) for _ in range(100)]
        for client in slow:
            client.sendall(sent)
        for _ in range(5):
            assert patient.status("web") == patient.status("grpc") == 200
        for client in slow:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)


def test_a_request_that_is_completed_late_is_answered(patient: Ports) -> None:
    for port in patient.both:
        with patient.connect(port) as client:
            for part in (HALF_A_HEAD, b"yes\r\nConnection: close\r\n", b"\r\n"):
                client.sendall(part)
                assert patient.status(port) == 200
            assert received(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_takes_too_long_is_cut_off(transactional_db: None, redis_url: str) -> None:
    short = {"PUSHHUB_HEAD_SECONDS": "1", "PUSHHUB_BODY_SECONDS": "1", "PUSHHUB_IDLE_SECONDS": "1"}
    with ports(redis_url, **short) as started:
        for port in started.both:
            with (
                started.connect(port) as silent,
                started.connect(port) as head,
                started.connect(port) as body,
                started.connect(port) as idle,
            ):
                head.sendall(HALF_A_HEAD)
                body.sendall(HALF_A_BODY)
                assert b" 200 OK" in answer(idle)
                assert received(silent) == received(head) == received(idle) == b""
                assert received(body).startswith(b"HTTP/1.1 408 ")


def test_a_body_that_drips_is_cut_off(transactional_db: None, redis_url: str) -> None:
    with ports(redis_url, PUSHHUB_BODY_SECONDS="1") as started, started.connect("web") as client:
        client.sendall(HALF_A_BODY)
        client.settimeout(0.1)
        give_up = time.monotonic() + 60
        while True:
            try:
                data = client.recv(65536)
                break
            except TimeoutError:
                assert time.monotonic() < give_up
                client.sendall(b"x")
        assert data.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("port", ["web", "grpc"])
def test_one_address_has_a_bounded_number_of_connections_and_leaves_the_rest_to_others(
    transactional_db: None, redis_url: str, port: str
) -> None:
    with ports(redis_url, PUSHHUB_CLIENT_CONNECTIONS="20", **PATIENT) as started, contextlib.ExitStack() as stack:
        greedy = [stack.enter_context(started.connect(port, source="127.0.0.2")) for _ in range(40)]
        wait_for(lambda: started.status(port, source="127.0.0.2") != 200, what="the limit")
        assert [started.status(port) for _ in range(5)] == [200] * 5
        for client in greedy:
            client.close()
        wait_for(lambda: started.status(port, source="127.0.0.2") == 200, what="room for the greedy one")


def test_the_grpc_port_ends_a_connection_that_takes_nothing(transactional_db: None, redis_url: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as behind,
        GrpcServer(redis_url, rest="http://{}:{}".format(*behind.getsockname()), PUSHHUB_BODY_SECONDS="1") as grpc,
    ):
        host, _, port = grpc.address.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as client:
            client.sendall(WHOLE)
            server = behind.accept()[0]
            with server, pytest.raises(ConnectionError):
                server.settimeout(60)
                while True:
                    server.sendall(b"x" * 1_000_000)
