"""Numbers in texts that anybody may send."""

from __future__ import annotations


def read_decimal(text: str, *, most: int) -> int | None:
    """Return a number up to `most` in digits of ASCII, or None for any other text.

    The length is checked first, as Python raises ValueError for more than 4,300 digits.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(most)):
        return None
    number = int(text)
    return number if number <= most else None
