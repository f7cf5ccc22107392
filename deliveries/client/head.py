"""What heads say that the parser does not tell: for refusals when to come back, for answers in pieces their framing.

The parser does not tell whether an answer says how long its body is, and a body that ends with the connection is whole
without a length and cut short with one. Reading every header through Python to find out would cost each ordinary
answer, and would buffer what a receiver drips.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from deliveries.rules.retry import retry_after_seconds

_END = b"\r\n\r\n"
_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
_RETRY_AFTER = re.compile(rb"\r\nretry-after:([^\r\n]{0,64})", re.IGNORECASE)
#: As much of a piece as may be the beginning of a match, or of the end of the head.
_OVERLAP = len(b"\r\ntransfer-encoding:") - 1


def retry_after_of(piece: bytes, interim_heads: int) -> float:
    """Return the seconds that the final head in this piece asks to wait, or 0.

    `interim_heads` is how many 1xx heads the parser saw end before it. Only the piece is looked at: heads hardly ever
    come in several, and what is missed is a wish.
    """
    start = 0
    for _ in range(interim_heads):
        start = piece.find(_END, start) + len(_END)
    end = piece.find(_END, start)
    found = _RETRY_AFTER.search(piece, start, end if end >= 0 else len(piece))
    return retry_after_seconds(found[1].decode("ascii", "replace").strip(), now=datetime.now(UTC)) if found else 0.0


class HeadScan:
    """Follows the heads of one answer piece by piece, up to the end of the final one. It keeps 19 bytes."""

    __slots__ = ("_tail", "has_length")

    def __init__(self) -> None:
        self.has_length = False
        self._tail = b""

    def feed(self, piece: bytes, interim_heads: int) -> None:
        """`interim_heads` is how many 1xx heads the parser saw end within this piece."""
        window = self._tail + piece
        start = 0
        for _ in range(interim_heads):
            start = window.index(_END, start) + len(_END)
            self.has_length = False
        end = window.find(_END, start)
        if _FRAMING.search(window, start, end if end >= 0 else len(window)):
            self.has_length = True
        self._tail = window[max(start, len(window) - _OVERLAP) :]
