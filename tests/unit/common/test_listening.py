"""The sockets on which servers listen."""

from __future__ import annotations

import socket

from pushhub.common.servers import listen


def test_a_server_of_all_addresses_takes_ipv4_too() -> None:
    with listen(("::", 0)) as server, socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=60):
        connection, (host, *_) = server.accept()
        connection.close()
    assert host == "::ffff:127.0.0.1"
