"""The sockets on which servers listen."""

from __future__ import annotations

import socket

import pytest

from pushhub.common.listening import listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_server_of_all_addresses_takes_ipv4_and_ipv6(host: str) -> None:
    with listen(("::", 0)) as listening, socket.create_connection((host, listening.getsockname()[1]), timeout=60):
        assert listening.accept()[1][0] in (f"::ffff:{host}", host)
