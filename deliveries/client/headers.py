"""Request headers: pairs of name and value in the client's interface, lines of bytes on the wire."""

from __future__ import annotations

import re
from collections.abc import Sequence

Headers = Sequence[tuple[str, str]]

#: Headers that the client writes itself, or that would change where a request ends.
OWN_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "host", "transfer-encoding", "user-agent"})
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")


def header_lines(headers: Headers) -> bytes:
    """Return the lines of these headers, each with its CRLF.

    Raises ValueError for a header that the client writes itself or that could break a request in two.
    """
    for name, value in headers:
        if not _NAME.fullmatch(name) or name.lower() in OWN_HEADERS or not _VALUE.fullmatch(value):
            raise ValueError(f"headers: {name!r} is not a header that a request may have")
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("ascii")
