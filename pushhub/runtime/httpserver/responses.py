"""Responses: those of the application, and those that the server sends without it."""

from __future__ import annotations

import http
import time
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from functools import lru_cache
from typing import Any

from pushhub.runtime.httpserver.requests import Request

#: Responds to some POST requests in the event loop, without a thread and without the application. It gets the target,
#: the header fields, whose names are in lower case, the body, and `respond`, and returns whether it takes the request.
#: For a request that it takes it later calls `respond` in the event loop: with the header fields and the body of a 200,
#: or with None if the application has to respond after all.
Direct = Callable[[bytes, Iterable[tuple[bytes, bytes]], bytes, Callable[[tuple[bytes, bytes] | None], None]], bool]


class Response:
    """A response of the application: its head, and an iterator over its body, which may not be complete yet."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.status = 0
        self._status_text = ""
        self.headers: list[tuple[str, str]] = []
        self.chunks: Iterator[bytes] = iter(())
        self.close: Callable[[], None] = lambda: None
        self.is_chunked = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], None]:
        """Take the status and header fields, as WSGI's `start_response`."""
        self.status, self._status_text, self.headers = int(status[:3]), status, headers
        return self._write

    @staticmethod
    def _write(data: bytes) -> None:
        raise NotImplementedError("the application must return its response")

    def has_body(self) -> bool:
        return self._request.method != "HEAD" and self.status not in (204, 304)

    def head(self, *, keep_alive: bool, length: int | None) -> bytes:
        """Return the status line and header fields. `length` is the size of the body, or None if it isn't known."""
        lines = [f"HTTP/1.1 {self._status_text}", *(f"{name}: {value}" for name, value in self.headers)]
        names = {name.lower() for name, _ in self.headers}
        if "content-length" not in names and self.status not in (204, 304):
            if length is not None and self.has_body():
                lines.append(f"Content-Length: {length}")
            elif self.has_body() and self._request.version == "1.1":
                self.is_chunked = True
                lines.append("Transfer-Encoding: chunked")
        if "date" not in names:
            lines.append(f"Date: {formatdate(usegmt=True)}")
        if not keep_alive:
            lines.append("Connection: close")
        elif self._request.version == "1.0":
            lines.append("Connection: keep-alive")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def has_end(self) -> bool:
        """Whether the client can tell where the response ends without the end of the connection."""
        names = {name.lower() for name, _ in self.headers}
        return self.is_chunked or not self.has_body() or "content-length" in names

    def frame(self, data: bytes) -> bytes:
        """Return a part of the body as it is sent."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self.is_chunked else data


def direct_response(fields: bytes, body: bytes, *, keep_alive: bool) -> bytes:
    """Return the bytes of a 200. `fields` are complete lines of header fields."""
    return b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\nDate: %b\r\n%b\r\n%b" % (
        fields,
        len(body),
        _date(int(time.time())),
        b"" if keep_alive else b"Connection: close\r\n",
        body,
    )


def refusal(status: int, reason: str, content_type: str) -> bytes:
    """Return the bytes of an error, after which the connection ends."""
    text = reason.encode()
    head = (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(text)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + text


@lru_cache(maxsize=1)
def _date(_second: int) -> bytes:
    return formatdate(usegmt=True).encode()
