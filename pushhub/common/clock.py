"""The time, to be passed as an argument."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Anything that returns the current time: `utcnow`, or a test's own clock."""

    def __call__(self) -> datetime: ...


def utcnow() -> datetime:
    return datetime.now(UTC)
