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


def duration_text(milliseconds: float) -> str:
    """Return a duration as people read it: 400 ms, 5.3 s, 18 s, 5 min, 3 h, 2 d."""
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{round(milliseconds)} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.2g} s" if seconds < 10 else f"{round(seconds)} s"
