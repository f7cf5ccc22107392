"""A request, and the WSGI environment that the application gets for it."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import httptools

from pushhub.common.peers import HAS_LEFT
from pushhub.runtime.httpserver.limits import Reservation

#: The application gets a larger body's length without the body, and refuses it.
BODY_BYTES = 11 * 1024 * 1024
#: The most bytes of a request line and its header fields, of the trailers behind a body, and of a chunk's extensions.
HEAD_BYTES = 64 * 1024


class HeadTooLargeError(httptools.HttpParserError):
    """A request's head has more bytes or more fields than the server keeps in memory."""


@dataclass(slots=True, eq=False)
class Request:
    """A request, as far as it has been received."""

    #: That of the client, also behind a proxy.
    address: str = ""
    target: bytes = b""
    #: The names are in lower case.
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    method: str = ""
    version: str = ""
    keep_alive: bool = False
    #: One buffer: objects for chunks of two bytes would take 60 times the memory.
    body: bytearray = field(default_factory=bytearray)
    #: The bytes of the body that have arrived.
    size: int = 0
    #: The value of Content-Length, or None without that header.
    length: int | None = None
    #: Whether the client waits for the interim response 100 before it sends the body.
    expects: bool = False
    #: Whether the client has ended its side of the connection: it has probably gone.
    has_left: bool = False
    #: Whether there is memory for the body, and the reservation of that memory.
    is_admitted: bool = True
    reservation: Reservation | None = None

    def is_too_large(self) -> bool:
        return max(self.size, self.length or 0) > BODY_BYTES

    def check_head(self) -> None:
        """Raise HttpParserError if the head is one that the parser accepts and other servers read differently."""
        names = [name for name, _ in self.headers]
        if len(self.target) + sum([len(name) + len(value) for name, value in self.headers]) > HEAD_BYTES:
            raise HeadTooLargeError
        is_framed = b"transfer-encoding" not in names or (
            self.version == "1.1"
            and [value.lower() for name, value in self.headers if name == b"transfer-encoding"] == [b"chunked"]
        )
        hosts = names.count(b"host")
        is_hosted = hosts == 1 or (not hosts and self.version == "1.0")
        if self.version not in ("1.0", "1.1") or not is_framed or not is_hosted:
            raise httptools.HttpParserError


def connection_environ(local: tuple[Any, ...]) -> dict[str, Any]:
    """Return the part of the WSGI environment that all requests of a client's connection have in common."""
    return {
        "SERVER_NAME": str(local[0]),
        "SERVER_PORT": str(local[1]),
        "SCRIPT_NAME": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.input_terminated": True,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }


def environ_of(request: Request, base: dict[str, Any]) -> dict[str, Any]:
    """Return the WSGI environment of a request; `base` is what all requests of its connection have in common."""
    path, _, query = request.target.partition(b"#")[0].partition(b"?")
    environ = base | {
        "REMOTE_ADDR": request.address,
        "REQUEST_METHOD": request.method,
        "SERVER_PROTOCOL": f"HTTP/{request.version}",
        "PATH_INFO": (unquote_to_bytes(path) if b"%" in path else path).decode("latin-1"),
        "QUERY_STRING": query.decode("latin-1"),
        "wsgi.input": io.BytesIO(request.body),
        HAS_LEFT: lambda: request.has_left,
    }
    for raw_name, raw_value in request.headers:
        if b"_" in raw_name:
            continue  # the application couldn't distinguish it from the name with a hyphen
        name, value = raw_name.decode("latin-1").upper().replace("-", "_"), raw_value.decode("latin-1")
        if name not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            name = f"HTTP_{name}"
        if name in environ:
            value = f"{environ[name]}{'; ' if name == 'HTTP_COOKIE' else ','}{value}"
        environ[name] = value
    environ.pop("HTTP_TRANSFER_ENCODING", None)
    if request.length is not None or request.size:
        environ["CONTENT_LENGTH"] = str(max(request.length or 0, request.size))
    return environ


def path_of(target: bytes) -> bytes:
    """Return the path and query of a target that includes the host. Raises HttpParserError if it has no path."""
    url = httptools.parse_url(target)
    path = url.path or b"/"
    if not path.startswith(b"/"):
        raise httptools.HttpParserInvalidURLError
    return path + (b"?" + url.query if url.query else b"")
