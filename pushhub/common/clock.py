"""The time, as an argument."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Anything that says what time it is: `utcnow`, or a test's own."""

    def __call__(self) -> datetime: ...


def utcnow() -> datetime:
    return datetime.now(UTC)
