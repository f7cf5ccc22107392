"""A push endpoint: the parts of its requests that never change, and its connections."""

from __future__ import annotations

from deliveries.client.options import ClientOptions
from deliveries.client.pool import Pool
from pushhub.common.pushurls import Origin, parse_push_url


class Endpoint:
    """A URL with the headers that all its requests carry, ready to be posted to."""

    __slots__ = ("head", "headers", "origin", "pool")

    def __init__(self, origin: Origin, *, head: bytes, headers: bytes, pool: Pool) -> None:
        self.origin = origin
        #: From the request line up to `Content-Length: `.
        self.head = head
        #: The lines of the caller's headers.
        self.headers = headers
        self.pool = pool


def parse_url(url: str, options: ClientOptions) -> tuple[Origin, bytes]:
    """Return the origin, and the head of its requests up to `Content-Length: `. Raises BadEndpoint."""
    parsed = parse_push_url(url, allow_http=options.allow_http, allowed_ports=options.allowed_ports)
    head = (
        f"POST {parsed.target} HTTP/1.1\r\nHost: {parsed.authority}\r\nUser-Agent: {options.user_agent}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Length: "
    )
    return parsed.origin, head.encode("ascii")
