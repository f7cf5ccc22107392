"""Parsing of push endpoint URLs, with the same rules at configuration and at push."""

from __future__ import annotations

import re
from contextlib import suppress
from enum import StrEnum
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

import idna

MAX_URL_CHARACTERS = 2048
#: No URL contains blanks, controls or backslashes. A fragment is never sent to a server.
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\#]")
_HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_DOTTED_QUAD = re.compile(r"(?:0|[1-9]\d{0,2})(?:\.(?:0|[1-9]\d{0,2})){3}")
_NUMERIC_LABEL = re.compile(r"\d+|0x[0-9a-f]*")
#: What `quote` doesn't escape: every delimiter that may be in a path and a query, and existing escapes.
_SAFE = "/?:@!$&'()*+,;=-._~%[]|"


WEB_PORTS = {"http": 80, "https": 443}
#: Ports above 1023 of services that a forged request could harm. Below 1024, only 80 and 443 are allowed.
DENIED_PORTS = frozenset(
    {
        *(1080, 1433, 1434, 1521, 1719, 1720, 1723, 2049, 2181, 2375, 2376, 2379, 2380, 3128, 3306, 3389, 3659, 4045),
        *(4190, 4369, 5060, 5061, 5432, 5672, 5900, 5984, 6000, 6379, 6380, 6443, 6566, 6665, 6666, 6667, 6668, 6669),
        *(6697, 7000, 7001, 8500, 9042, 9092, 9200, 9300, 10080, 10250, 10255, 11211, 15672, 26379, 27017, 50070),
    }
)
FIRST_FREE_PORT = 1024


def is_port_allowed(port: int, allowed: frozenset[int]) -> bool:
    """Whether an endpoint may use the port. `allowed` are ports that a setting permits in spite of the rule."""
    if port in allowed or port in WEB_PORTS.values():
        return True
    return port >= FIRST_FREE_PORT and port not in DENIED_PORTS


class UrlFault(StrEnum):
    """What is wrong with a URL, in bounded words."""

    BAD_URL = "bad_url"
    SCHEME_DENIED = "scheme_denied"
    PORT_DENIED = "port_denied"
    BAD_HOST = "bad_host"


class BadEndpoint(ValueError):
    """PushHub can't push to the URL. `fault` is a bounded word; the text doesn't repeat the URL.

    `template` and `values` are what the text is made of, for translations.
    """

    def __init__(self, fault: UrlFault, template: str, **values: object) -> None:
        super().__init__(template % values)
        self.fault = fault
        self.template = template
        self.values = values


class Origin(NamedTuple):
    """The key of a connection pool. `host` is lower-case ASCII, without brackets or a trailing dot."""

    scheme: str
    host: str
    port: int

    @property
    def tls(self) -> bool:
        return self.scheme == "https"


class PushUrl(NamedTuple):
    """Where to connect, and two parts of the request: its target and its Host header."""

    origin: Origin
    target: str
    authority: str


def parse_push_url(url: str, *, allow_http: bool, allowed_ports: frozenset[int]) -> PushUrl:
    """Parse a URL. Raises BadEndpoint if PushHub can't push to it, whatever its address is."""
    parts = _split(url)
    if parts.scheme not in WEB_PORTS or (parts.scheme == "http" and not allow_http):
        raise BadEndpoint(UrlFault.SCHEME_DENIED, "the scheme is not allowed here")
    host = _host(parts)
    port = _port(parts)
    if not is_port_allowed(port, allowed_ports):
        template = "port %(port)d is not allowed, unless PUSHHUB_ALLOWED_PORTS includes it"
        raise BadEndpoint(UrlFault.PORT_DENIED, template, port=port)
    target = quote(parts.path or "/", safe=_SAFE) + ("?" + quote(parts.query, safe=_SAFE) if parts.query else "")
    authority = f"[{host}]" if ":" in host else host
    if port != WEB_PORTS[parts.scheme]:
        authority += f":{port}"
    return PushUrl(Origin(parts.scheme, host, port), target, authority)


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARACTERS or _UNSAFE.search(url):
        raise BadEndpoint(UrlFault.BAD_URL, "the URL is too long or has a character that no URL has")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadEndpoint(UrlFault.BAD_URL, "not a URL") from None
    if "@" in parts.netloc or not parts.netloc:
        raise BadEndpoint(UrlFault.BAD_URL, "the URL has no host, or a user name")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or (port is None and parts.netloc.endswith(":")):
        raise BadEndpoint(UrlFault.BAD_URL, "the URL has a bad port")
    return port or WEB_PORTS[parts.scheme]


def _host(parts: SplitResult) -> str:
    host = parts.hostname or ""
    if parts.netloc.startswith("["):
        return _ipv6(host)
    host = host.removesuffix(".")
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode("ascii")
        except idna.IDNAError:
            host = ""
    if len(host) > 253 or not _HOST_NAME.fullmatch(host):
        raise BadEndpoint(UrlFault.BAD_HOST, "the host is neither a name nor an address")
    if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]):
        return _ipv4(host)
    return host


def _ipv6(host: str) -> str:
    with suppress(AddressValueError):
        if "%" not in host:
            return str(IPv6Address(host))
    raise BadEndpoint(UrlFault.BAD_HOST, "the host is not an IPv6 address")


def _ipv4(host: str) -> str:
    """Accept only the plain spelling. The system's resolver also accepts `127.1`, `0x7f.1` and `2130706433`."""
    with suppress(AddressValueError):
        if _DOTTED_QUAD.fullmatch(host):
            return str(IPv4Address(host))
    raise BadEndpoint(UrlFault.BAD_HOST, "an IPv4 address is four decimal numbers")
