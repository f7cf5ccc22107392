"""When an endpoint starts to fail and when it is healthy again, so that logs tell of changes and not of attempts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

#: An endpoint fails after that many nacks in a row, or when that share of the recent results are nacks.
NACKS_IN_A_ROW = 3
RECENT = 20
FAILING_NACKS = 10
#: It is healthy again after that many acks in a row, or when nothing followed an ack for so long.
ACKS_IN_A_ROW = 10
QUIET_SECONDS = 5.0
MINUTE_SECONDS, HOUR_SECONDS = 60, 3600


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one attempt: its HTTP status or reason, and when that was, in seconds since 1970."""

    is_ack: bool
    text: str
    ended: float


@dataclass(frozen=True, slots=True)
class Change:
    """An endpoint began to fail, fails for another reason, or is healthy again (then the reason is empty)."""

    reason: str
    since: float
    failed: int
    seconds: float

    def describe(self, name: str, *, backoff_ms: float) -> str:
        """Return the line for people."""
        if not self.reason:
            return f"{name}: healthy again after {duration_text(self.seconds)}"
        since = datetime.fromtimestamp(self.since, UTC).strftime("%H:%M:%S")
        pause = f", backing off {duration_text(backoff_ms / 1000)}" if backoff_ms else ""
        pushes = "1 push" if self.failed == 1 else f"{self.failed} pushes"
        return f"{name}: {self.reason.replace('_', ' ')} since {since}, {pushes} failed{pause}"


class EndpointHealth:
    """The health of one subscription's endpoint, as one worker sees it."""

    __slots__ = ("_acks", "_failed", "_nacks", "_reason", "_recent", "_same", "_since", "_text", "_text_since", "ended")

    def __init__(self) -> None:
        #: The reason that was reported; empty while the endpoint is healthy.
        self._reason = ""
        self._since = 0.0
        #: Nacks since the endpoint was last healthy, and in a row; acks in a row.
        self._failed = self._nacks = self._acks = 0
        #: The last nack's text, how often it came in a row, and since when.
        self._text, self._same, self._text_since = "", 0, 0.0
        #: A bit for each recent result, 1 for a nack.
        self._recent = 0
        self.ended = 0.0

    @property
    def is_failing(self) -> bool:
        return bool(self._reason)

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing is left to remember: healthy, and no nack among the recent results."""
        return not self._reason and not self._recent

    def observe(self, results: Iterable[Result]) -> Change | None:
        """Take in results in their order; returns the last change that they make."""
        change: Change | None = None
        for result in results:
            self.ended = result.ended
            self._recent = (self._recent << 1 | (not result.is_ack)) & ((1 << RECENT) - 1)
            change = (self._ack(result) if result.is_ack else self._nack(result)) or change
        return change and self._current(change)

    def settle(self, now: float) -> Change | None:
        """Return the recovery of an endpoint whose last result was an ack, when nothing else came for a while."""
        if self._reason and self._acks and now - self.ended >= QUIET_SECONDS:
            return self._recover(self.ended)
        return None

    def _ack(self, result: Result) -> Change | None:
        self._acks += 1
        self._nacks = self._same = 0
        if self._reason:
            return self._recover(result.ended) if self._acks >= ACKS_IN_A_ROW else None
        if self._acks >= NACKS_IN_A_ROW:
            self._failed = 0
        return None

    def _nack(self, result: Result) -> Change | None:
        self._acks = 0
        self._nacks += 1
        self._failed += 1
        if self._failed == 1:
            self._since = result.ended
        self._same = self._same + 1 if result.text == self._text else 1
        if self._same == 1:
            self._text, self._text_since = result.text, result.ended
        is_failing = self._nacks >= NACKS_IN_A_ROW or self._recent.bit_count() >= FAILING_NACKS
        if not self._reason and is_failing:
            self._reason = result.text
            return Change(self._reason, self._since, self._failed, 0.0)
        if self._reason and self._reason != self._text and self._same >= NACKS_IN_A_ROW:
            self._reason = self._text
            return Change(self._reason, self._text_since, self._failed, 0.0)
        return None

    def _recover(self, now: float) -> Change:
        change = Change("", self._since, self._failed, now - self._since)
        self._reason, self._failed, self._recent = "", 0, 0
        return change

    def _current(self, change: Change) -> Change:
        """Count the whole batch in the line."""
        return Change(change.reason, change.since, self._failed or change.failed, change.seconds)


def duration_text(seconds: float) -> str:
    """Return a duration for people: `6 s`, `2 min`, `1.5 h`; under a second in ms."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    if seconds < HOUR_SECONDS:
        return f"{seconds / MINUTE_SECONDS:.0f} min"
    return f"{seconds / HOUR_SECONDS:.1f} h"
