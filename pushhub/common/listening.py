"""Sockets on which servers listen."""

from __future__ import annotations

import socket

#: How many connections may wait until they are accepted.
BACKLOG = 2048


def listen(address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens on a host and port, where 0 is a free port and `::` takes IPv4 too.

    Raises OSError if the address can't be used.
    """
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    is_dual = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=is_dual)
