"""The clients behind the gRPC server's connections.

Every connection reaches it through the port multiplexer (pushhub/runtime/multiplexer.py), so the peers that gRPC sees
are local ports of this machine. The multiplexer records here which client each of them stands for.
"""

from __future__ import annotations

_addresses: dict[int, str] = {}


def note_peer(port: int, address: str) -> None:
    """Record that the multiplexer's connections from this local port stand for `address`."""
    _addresses[port] = address


def forget_peer(port: int) -> None:
    _addresses.pop(port, None)


def address_of(peer: str) -> str:
    """Return the address of a peer in gRPC's form, such as `ipv4:127.0.0.1:51234`."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    address = _addresses.get(int(port)) if port.isdecimal() else None
    return address or host.strip("[]")
