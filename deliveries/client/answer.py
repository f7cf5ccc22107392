"""An endpoint's answer as people read it: status line, headers and the beginning of the body, without secrets."""

from __future__ import annotations

import re
from contextlib import suppress

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

#: What is kept of the bytes of one answer while it arrives.
RAW_BYTES = 4096
BODY_BYTES = 1024
#: What is shown of a head: headers, and bytes of each value.
MAX_HEADERS = 30
VALUE_BYTES = 200
REDACTED = "[redacted]"

_WORDS = "cookie|auth|token|key|secret|passw|credential|session|signature|jwt"
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
#: A name that holds one of these words, and what it is set to. Every repetition is bounded, or ends at the first
#: character that doesn't fit: the endpoint chooses the text.
_SECRET_TEXT = re.compile(
    rf"((?:{_WORDS})[\w.-]{{0,40}}[\"']?\s{{0,8}}[:=]\s{{0,8}})"
    r"(\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|(?:(?:bearer|basic|digest)\s{1,8})?[^\s,;&}<]+)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"\b(?:bearer|basic)\s{1,8}[\w.~+/=-]{8,}|\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*", re.IGNORECASE)
_CONTROL = re.compile(r"[^\t\n\x20-\x7e\x80-\U0010ffff]|[\x80-\x9f]")


class _Parts:
    """What the parser finds; a final response replaces an interim one."""

    def __init__(self) -> None:
        self.on_message_begin()

    def on_message_begin(self) -> None:
        self.phrase = b""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()

    def on_status(self, phrase: bytes) -> None:
        self.phrase += phrase

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) < MAX_HEADERS:
            self.headers.append((_text(name[:VALUE_BYTES]), _text(value[:VALUE_BYTES])))

    def on_body(self, data: bytes) -> None:
        self.body += data[: BODY_BYTES - len(self.body)]


def readable_answer(raw: bytes) -> str:
    """Return an answer of which `raw` has the first bytes; what is not HTTP is returned as a body."""
    parts = _Parts()
    parser = HttpResponseParser(parts)
    with suppress(HttpParserError, HttpParserUpgrade):
        parser.feed_data(raw)
    if not parts.headers and not parts.phrase:
        return _without_secrets(_text(raw[:BODY_BYTES]))
    head = [f"HTTP/{parser.get_http_version()} {parser.get_status_code()} {_text(parts.phrase[:VALUE_BYTES])}"]
    head += [
        f"{name}: {REDACTED if _SECRET_NAME.search(name) else _without_secrets(value)}" for name, value in parts.headers
    ]
    body = _without_secrets(_text(bytes(parts.body)))
    return "\n".join([*head, "", body]).rstrip()


def _without_secrets(text: str) -> str:
    return _TOKEN.sub(REDACTED, _SECRET_TEXT.sub(lambda found: found[1] + REDACTED, text))


def _text(data: bytes) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", data.decode("utf-8", "replace").replace("\r\n", "\n"))
