"""A push endpoint: the parts of its requests that never change, and its connections."""

from __future__ import annotations

from dataclasses import dataclass

from deliveries.client.options import ClientOptions
from deliveries.client.pool import Pool
from pushhub.common.pushurls import Origin, parse_push_url


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """A URL with the headers that all its requests carry, ready to be posted to."""

    origin: Origin
    #: From the request line up to `Content-Length: `.
    head: bytes
    #: The lines of the caller's headers.
    headers: bytes
    pool: Pool


def parse_url(url: str, options: ClientOptions) -> tuple[Origin, bytes]:
    """Return the origin, and the head of its requests up to `Content-Length: `. Raises BadEndpoint."""
    parsed = parse_push_url(url, allow_http=options.allow_http, allowed_ports=options.allowed_ports)
    head = (
        f"POST {parsed.target} HTTP/1.1\r\nHost: {parsed.authority}\r\nUser-Agent: {options.user_agent}\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\nContent-Length: "
    )
    return parsed.origin, head.encode("ascii")
