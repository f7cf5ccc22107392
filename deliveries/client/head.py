"""Reads what the parser does not report: the Retry-After of refusals, and whether a head declares a length.

A body that ends with the connection is complete if no length was declared, and incomplete otherwise. Reading every
header in Python would slow down all ordinary responses, and would buffer heads that arrive in small pieces.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from deliveries.rules.retry import retry_after_seconds

_END = b"\r\n\r\n"
_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after:([^\r\n]{0,64})", re.IGNORECASE)
#: The longest part of a piece that may be the beginning of a match, or of the end of the head.
_OVERLAP = len(b"\r\ntransfer-encoding:") - 1


def retry_after_of(piece: bytes, interim_heads: int) -> float:
    """Return the seconds that the final head in this piece asks the client to wait, or 0.

    `interim_heads` is the number of 1xx heads that end before it in the piece. Heads hardly ever arrive in several
    pieces, and a missed Retry-After does no harm, so only this piece is searched.
    """
    start = 0
    for _ in range(interim_heads):
        start = piece.find(_END, start) + len(_END)
    end = piece.find(_END, start)
    match = _RETRY_AFTER.search(piece, start, end if end >= 0 else len(piece))
    return retry_after_seconds(match[1].decode("ascii", "replace").strip(), now=datetime.now(UTC)) if match else 0.0


class HeadScan:
    """Follows the heads of one response piece by piece, to the end of the final head. It keeps 19 bytes."""

    def __init__(self) -> None:
        self.has_length = False
        self._tail = b""

    def feed(self, piece: bytes, interim_heads: int) -> None:
        """Read a piece; `interim_heads` is the number of 1xx heads that end in it."""
        window = self._tail + piece
        start = 0
        for _ in range(interim_heads):
            start = window.index(_END, start) + len(_END)
            self.has_length = False
        end = window.find(_END, start)
        if _FRAMING.search(window, start, end if end >= 0 else len(window)):
            self.has_length = True
        self._tail = window[max(start, len(window) - _OVERLAP) :]
