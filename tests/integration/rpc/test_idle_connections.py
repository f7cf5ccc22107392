"""Connections that clients keep: each side learns at once that the other has closed, on both ports."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud.pubsub_v1 import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherRestTransport

from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.webservers import WebServer

pytestmark = pytest.mark.any_database

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def behind() -> Iterator[socket.socket]:
    """Yield a listening socket in place of the web server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        yield listening


@pytest.fixture
def multiplexer(transactional_db: None, redis_url: str, behind: socket.socket) -> Iterator[tuple[str, int]]:
    """Start the port multiplexer in front of that socket."""
    with GrpcServer(redis_url, rest="http://{}:{}".format(*behind.getsockname())) as server:
        host, _, port = server.address.partition(":")
        yield host, int(port)


def test_ends_are_passed_on_in_both_directions(multiplexer: tuple[str, int], behind: socket.socket) -> None:
    with socket.create_connection(multiplexer, timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        server = behind.accept()[0]
        with server:
            server.settimeout(30)
            assert b"\nGET " in server.recv(1000), "behind the line that names the client"
            server.sendall(ANSWER)
            assert client.recv(1000) == ANSWER
        assert client.recv(1000) == b"", "the server's end, while the client is silent"
    with socket.create_connection(multiplexer, timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        server = behind.accept()[0]
        with server:
            server.settimeout(30)
            data = b""
            while more := server.recv(1000):
                data += more
            assert b"\nGET " in data, "the client's end, while it waits for its answer"
            server.sendall(ANSWER)
        assert client.recv(1000) == ANSWER
        assert client.recv(1000) == b""


def test_a_server_that_ends_without_reading_everything_still_gets_its_answer_through(
    multiplexer: tuple[str, int], behind: socket.socket
) -> None:
    with socket.create_connection(multiplexer, timeout=30) as client:
        client.sendall(b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n")
        server = behind.accept()[0]
        server.sendall(ANSWER)
        server.shutdown(socket.SHUT_WR)
        assert client.recv(1000) == ANSWER
        client.sendall(b"x" * 1000)
        assert client.recv(1000) == b""
        server.close()


@pytest.fixture
def brief(transactional_db: None, redis_url: str) -> Iterator[dict[str, str]]:
    """Return the URLs of both ports; connections may be idle for a second."""
    with (
        WebServer(redis_url, PUSHHUB_IDLE_SECONDS="1") as web,
        GrpcServer(redis_url, rest=web.url) as grpc,
    ):
        yield {"web": web.url, "grpc": f"http://{grpc.address}"}


@pytest.mark.parametrize("port", ["web", "grpc"])
def test_clients_go_on_after_their_connection_was_idle(brief: dict[str, str], port: str) -> None:
    connections: list[socket.socket] = []
    transport = PublisherRestTransport(host=brief[port], url_scheme="http", credentials=AnonymousCredentials())
    google = PublisherClient(transport=transport)
    with requests.Session() as session, transport._session:
        session.mount("http://", _Remembering(connections))
        transport._session.mount("http://", _Remembering(connections))
        for _ in range(2):
            assert session.put(f"{brief[port]}/v1/projects/shop/topics/{port}-plain", timeout=10).status_code in (
                200,
                409,
            )
            assert list(google.list_topics(project="projects/shop", timeout=10))
            assert len(connections) == 2
            for connection in connections:
                wait_for(lambda connection=connection: _has_ended(connection), what="the end of the connection")
            connections.clear()


def _has_ended(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0]) and connection.recv(1, socket.MSG_PEEK) == b""


class _Remembering(requests.adapters.HTTPAdapter):
    """Keeps the sockets of the requests that it sends."""

    def __init__(self, connections: list[socket.socket]) -> None:
        super().__init__(max_retries=0)
        self._connections = connections

    def send(self, request: Any, *arguments: Any, **options: Any) -> Any:
        answer = super().send(request, *arguments, **options)
        self._connections.append(answer.raw.connection.sock)
        return answer
