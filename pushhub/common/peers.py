"""The clients behind the connections of a proxy and of the gRPC server.

Every connection reaches the gRPC server through the port multiplexer (pushhub/runtime/multiplexer.py), so the peers
that it sees are local ports of this machine. The multiplexer records here which client each of them stands for.
"""

from __future__ import annotations

import ipaddress

#: What the web server's WSGI environment calls the function that tells whether the client has ended its side of the
#: connection.
HAS_LEFT = "pushhub.has_left"

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


def last_forwarded(value: str) -> str:
    """Return the address that a proxy has put last into an X-Forwarded-For header; "" if the last entry is none."""
    address = value.rpartition(",")[2].strip()
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return ""


def client_of(address: str) -> str:
    """Return what counts as one client: an IPv4 address, or the /64 network of an IPv6 address."""
    if ":" not in address:
        return address
    v6 = ipaddress.IPv6Address(address.partition("%")[0])
    return str(v6.ipv4_mapped or ipaddress.IPv6Network((v6, 64), strict=False))
