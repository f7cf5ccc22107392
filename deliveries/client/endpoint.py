"""A push endpoint, as its requests need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pushhub.common.pushurls import Origin, push_url_parse

if TYPE_CHECKING:
    from deliveries.client.options import ClientOptions
    from deliveries.client.pool import Pool


class Endpoint:
    """The parts of a request that depend on the URL alone, and the pool that serves it."""

    __slots__ = ("head", "origin", "pool")

    def __init__(self, origin: Origin, *, head: bytes, pool: Pool) -> None:
        self.origin = origin
        #: From the request line up to `Content-Length: `.
        self.head = head
        self.pool = pool


def parse_url(url: str, options: ClientOptions) -> tuple[Origin, bytes]:
    """Return the origin, and the head of its requests up to `Content-Length: `. Raises BadEndpoint."""
    found = push_url_parse(url, allow_http=options.allow_http, allowed_ports=options.allowed_ports)
    head = (
        f"POST {found.target} HTTP/1.1\r\nHost: {found.authority}\r\nUser-Agent: {options.user_agent}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Length: "
    )
    return found.origin, head.encode("ascii")
