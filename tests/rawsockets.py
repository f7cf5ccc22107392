"""Clients that send bytes of their own choice to the two ports that serve REST."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

from tests.grpcservers import GrpcServer
from tests.webservers import WebServer

#: A whole request.
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@dataclass
class Ports:
    """A web server and a gRPC server whose port leads to it."""

    web: WebServer
    both: dict[str, tuple[str, int]]

    def connect(self, port: str, *, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(self.both[port], timeout=30, source_address=(source, 0))

    def status(self, port: str, *, source: str = "127.0.0.1") -> int:
        with self.connect(port, source=source) as client:
            try:
                client.sendall(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
                return int(received(client)[9:12] or 0)
            except ConnectionError:
                return 0


@contextlib.contextmanager
def ports(redis_url: str, **settings: str) -> Iterator[Ports]:
    with WebServer(redis_url, **settings) as web, GrpcServer(redis_url, rest=web.url, **settings) as grpc:
        host, _, port = grpc.address.partition(":")
        yield Ports(web, {"web": web.address, "grpc": (host, int(port))})


def received(client: socket.socket) -> bytes:
    """Return everything that the server sends until it ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := client.recv(65536):
            data += more
    return data
