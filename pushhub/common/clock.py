"""The time, to be passed as an argument."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

#: Anything that returns the current time: `utcnow`, or a test's own clock.
Clock = Callable[[], datetime]


def utcnow() -> datetime:
    return datetime.now(UTC)


def minute_text(minute: datetime) -> str:
    """Return a minute as the console writes it, `2026-11-22 05:32 UTC`."""
    return f"{minute.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def time_text(moment: datetime, *, milliseconds: bool = False) -> str:
    """Return a time as the console writes all times, `2026-11-22 05:32:07 UTC`, with milliseconds if asked for."""
    utc = moment.astimezone(UTC)
    fraction = f".{utc.microsecond // 1000:03}" if milliseconds else ""
    return f"{utc:%Y-%m-%d %H:%M:%S}{fraction} UTC"
