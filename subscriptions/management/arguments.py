"""Arguments that several commands share."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def lifetime(text: str) -> timedelta:
    """Parse `90s`, `30m`, `12h` or `7d`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r}: give a number and one of s, m, h, d: 90s, 30m, 12h, 7d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})
