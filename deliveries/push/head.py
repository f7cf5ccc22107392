"""Whether an answer says how long its body is; asked only for answers that do not come in one piece.

The parser does not tell, and a body that ends with the connection is whole without a length and cut short with one.
Reading every header through Python to find out would cost each ordinary answer, and would buffer what a receiver drips.
"""

from __future__ import annotations

import re

_END = b"\r\n\r\n"
_FRAMING = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
#: As much of a piece as may be the beginning of a match, or of the end of the head.
_OVERLAP = len(b"\r\ntransfer-encoding:") - 1


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
