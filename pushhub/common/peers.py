"""Whom the gRPC server's connections belong to.

Every connection reaches it through the port multiplexer (pushhub/runtime/multiplexer.py), so the peers that
gRPC itself sees are local ports of this machine. The multiplexer notes here which client each of them stands for.
"""

from __future__ import annotations

_addresses: dict[int, str] = {}


def peer_note(port: int, address: str) -> None:
    """Connections from this local port are the multiplexer's, on behalf of `address`."""
    _addresses[port] = address


def peer_forget(port: int) -> None:
    _addresses.pop(port, None)


def address_of(peer: str) -> str:
    """The address behind gRPC's word for a peer, such as `ipv4:127.0.0.1:51234`."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    known = _addresses.get(int(port)) if port.isdecimal() else None
    return known or host.strip("[]")
