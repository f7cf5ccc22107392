"""Which addresses a push request may reach.

The guard compares numbers with a table. It has the special-purpose blocks of IANA's registries, also those that are
globally reachable, because what answers there is the nearest relay or name server, and the metadata services.
`ipaddress` considers 100.64.0.0/10 not private, and multicast, NAT64, 6to4 and 168.63.129.16 global, so its properties
can't be used. It only parses the text here.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple


class Row(NamedTuple):
    """One block of the deny table, as the numbers of its first and last address."""

    block: str
    why: str
    #: Whether `allow_private` lifts the row.
    private: bool = False


DENIED_V4: tuple[Row, ...] = (
    Row("0.0.0.0/8", "this network"),
    Row("10.0.0.0/8", "private", private=True),
    Row("100.64.0.0/10", "carrier-grade NAT", private=True),
    Row("100.100.100.200/32", "cloud metadata"),
    Row("127.0.0.0/8", "loopback", private=True),
    Row("168.63.129.16/32", "cloud metadata"),
    Row("169.254.0.0/16", "link-local"),
    Row("172.16.0.0/12", "private", private=True),
    Row("192.0.0.0/24", "protocol assignments"),
    Row("192.0.2.0/24", "documentation"),
    Row("192.31.196.0/24", "AS112"),
    Row("192.52.193.0/24", "multicast relay"),
    Row("192.88.99.0/24", "6to4 relay"),
    Row("192.168.0.0/16", "private", private=True),
    Row("192.175.48.0/24", "AS112"),
    Row("198.18.0.0/15", "benchmarking"),
    Row("198.51.100.0/24", "documentation"),
    Row("203.0.113.0/24", "documentation"),
    Row("224.0.0.0/4", "multicast"),
    Row("240.0.0.0/4", "reserved and broadcast"),
)
DENIED_V6: tuple[Row, ...] = (
    Row("::/128", "unspecified"),
    Row("::1/128", "loopback", private=True),
    Row("::/96", "IPv4-compatible"),
    Row("64:ff9b::/96", "NAT64"),
    Row("64:ff9b:1::/48", "NAT64"),
    Row("2001::/23", "protocol assignments"),
    Row("2001:db8::/32", "documentation"),
    Row("2002::/16", "6to4"),
    Row("2620:4f:8000::/48", "AS112"),
    Row("3fff::/20", "documentation"),
    Row("fc00::/7", "unique local", private=True),
    Row("fd00:42::42/128", "cloud metadata"),
    Row("fd00:ec2::23/128", "cloud metadata"),
    Row("fd00:ec2::254/128", "cloud metadata"),
    Row("fd20:ce::254/128", "cloud metadata"),
    Row("fe80::/10", "link-local"),
    Row("ff00::/8", "multicast"),
    # Addresses of hosts are global unicast, 2000::/3. The rest is reserved, and new blocks of it get a special purpose.
    Row("::/3", "not global unicast"),
    Row("4000::/2", "not global unicast"),
    Row("8000::/1", "not global unicast"),
)

#: Why PushHub's own ports are denied, which no setting changes.
OWN_LISTENER = "own listener"

_MAPPED = ip_network("::ffff:0:0/96")
#: Blocks whose addresses contain the IPv4 address that they lead to, and how many bits follow it.
_CARRIERS = (
    (ip_network("::/96"), 0),
    (ip_network("64:ff9b::/96"), 0),
    # Networks choose their own prefixes in this block, usually of 96 bits (RFC 8215).
    (ip_network("64:ff9b:1::/48"), 0),
    (ip_network("2002::/16"), 80),
)

_Address = IPv4Address | IPv6Address
_Network = IPv4Network | IPv6Network


class _Block(NamedTuple):
    first: int
    last: int
    prefix: int
    row: Row


def _blocks(rows: Iterable[Row]) -> tuple[_Block, ...]:
    """Return the blocks with the narrowest first, because the narrowest block with an address decides."""
    blocks = []
    for row in rows:
        network = ip_network(row.block)
        blocks.append(_Block(int(network.network_address), int(network.broadcast_address), network.prefixlen, row))
    return tuple(sorted(blocks, key=lambda block: -block.prefix))


_BLOCKS = {4: _blocks(DENIED_V4), 6: _blocks(DENIED_V6)}


class AddressGuard:
    """Judges a numeric address before a socket is opened to it.

    An entry of `allowed_networks` lifts a row of the table that is at least as wide: 10.1.0.0/16 lifts 10.0.0.0/8 for
    its addresses, while 0.0.0.0/0 lifts nothing and 100.64.0.0/10 doesn't allow the metadata address.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        allowed_networks: Iterable[str] = (),
        own_listeners: Iterable[tuple[str, int]] = (),
    ) -> None:
        self._allow_private = allow_private
        self._allowed: tuple[_Network, ...] = tuple(ip_network(network) for network in allowed_networks)
        self._own = tuple((_own_address(host), port) for host, port in own_listeners)

    def why_denied(self, address: str, port: int) -> str:
        """Return the table's reason for a denial, or "" if the address is allowed. Malformed addresses are denied."""
        if "%" in address:
            return "zone id"
        try:
            parsed = ip_address(address)
        except ValueError:
            return "not an address"
        parsed = _unmapped(parsed)
        return self._why_own(parsed, port) or self._why_listed(parsed)

    def why_denied_host(self, host: str, port: int) -> str:
        """Return why a URL with this host can't ever be pushed to, or "" if its address has to be looked up first."""
        if ":" in host or host.replace(".", "").isdecimal():
            return self.why_denied(host, port)
        # The public name system has no addresses for names of one label: they lead to the network around PushHub.
        is_inside = "." not in host and not self._allow_private and not self._allowed
        return "a name in the local network" if is_inside else ""

    def _why_own(self, address: _Address, port: int) -> str:
        for own, own_port in self._own:
            if port == own_port and (address == own or (own is None and _is_this_machine(address))):
                return OWN_LISTENER
        return ""

    def _why_listed(self, address: _Address) -> str:
        number = int(address)
        for block in _BLOCKS[address.version]:
            if block.first <= number <= block.last:
                if not self._is_lifted(address, block):
                    return block.row.why
                break
        return self._why_carried(address)

    def _is_lifted(self, address: _Address, block: _Block) -> bool:
        if block.row.private and self._allow_private:
            return True
        return any(address in network and network.prefixlen >= block.prefix for network in self._allowed)

    def _why_carried(self, address: _Address) -> str:
        """Judge the address behind a translator, whose block a setting may allow."""
        if address.version == 4 or int(address) <= 1:
            return ""
        for network, shift in _CARRIERS:
            if address in network:
                return self._why_listed(IPv4Address((int(address) >> shift) & 0xFFFFFFFF))
        return ""


def _unmapped(address: _Address) -> _Address:
    """Return the IPv4 address of `::ffff:a.b.c.d`, because a connection to it uses IPv4."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _MAPPED else address


def _own_address(host: str) -> _Address | None:
    """Return a listener's address; None for every address of this machine."""
    if host in {"", "*", "localhost"}:
        return None
    address = _unmapped(ip_address(host))
    return None if not int(address) else address


def _is_this_machine(address: _Address) -> bool:
    number = int(address)
    return number >> 24 in {0, 127} if address.version == 4 else number <= 1
