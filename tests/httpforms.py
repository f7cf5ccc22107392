"""What no client of HTTP sends: forms that servers read differently, and what never ends."""

from __future__ import annotations

HOST = b"Host: 127.0.0.1\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + HOST
POST = b"POST /token HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
FORMS = {
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "two hosts": GET + HOST + b"\r\n",
    "HTTP/0.9": b"GET /healthz\r\n\r\n",
    "HTTP/1.2": b"GET /healthz HTTP/1.2\r\n" + HOST + b"\r\n",
    "HTTP/2.0": b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    "length beside chunked": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked beside length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    "a signed length": POST + b"Content-Length: +5\r\n\r\nhello",
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding like chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked of HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"zz\r\n",
    "a folded field": GET + b"X: a\r\n b\r\n\r\n",
    "a space before the colon": GET + b"X : a\r\n\r\n",
    "no size of a length": POST + b"Content-Length: -1\r\n\r\n",
    "a NUL in a field": GET + b"X: a\0b\r\n\r\n",
    "a target without a path": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    "nonsense": b"nonsense\r\n\r\n",
    "lines without CR": GET.replace(b"\r", b"") + b"\n",
    "70 KB of URL": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    "70 KB of a field": GET + b"X: " + b"a" * 70_000 + b"\r\n\r\n",
    "16,000 fields": GET + b"X:\r\n" * 16_000 + b"\r\n",
    "one field too many": GET + b"X:\r\n" * 500 + b"\r\n",
    "a forged client": b"PUSHHUB-CLIENT http 192.0.2.1:1tN:forged\n" + GET + b"\r\n",
    "an endless client": b"PUSHHUB-CLIENT http 192.0.2." + b"1" * 1000,
}
ENDLESS = {
    "a head": (b"GET /", b"a" * 1_000),
    "fields": (GET, b"A:b\r\n" * 200),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"A:b\r\n" * 200),
    "a trailer": (CHUNKED + b"1\r\na\r\n0\r\nX: ", b"a" * 1_000),
    "an extension": (CHUNKED + b"1;", b"a" * 1_000),
}
#: The forms that are refused as too large.
TOO_LARGE = ("70 KB of URL", "70 KB of a field", "16,000 fields", "one field too many")
