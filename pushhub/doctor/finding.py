"""What the doctor finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """`failed` keeps messages from being taken or delivered, now or soon. A `warning` may become that."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it stands, and the remedy of a fault."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.WARNING, text, remedy)


def failed(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.FAILED, text, remedy)


def judge_clock(check: str, server: str, seconds: float) -> Finding:
    """Judge how many seconds the clock of a server is ahead of this machine's."""
    if abs(seconds) < CLOCK_SECONDS:
        return ok(check, f"the clocks of {server} and of this machine agree")
    text = f"the clock of {server} is {seconds:+.1f} s off this machine's"
    level = Level.WARNING if abs(seconds) < CLOCK_LIMIT_SECONDS else Level.FAILED
    return Finding(check, level, text, "Let chrony or systemd-timesyncd keep both clocks.")


#: A difference from which on the order of messages of several publishers is not that of their times.
CLOCK_SECONDS = 1.0
#: Signed tokens and leases are wrong by then: a lease lasts 10 s at least.
CLOCK_LIMIT_SECONDS = 5.0
