"""When an endpoint starts to fail and when it is healthy again, so that logs tell of changes and not of attempts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from deliveries.rules.outcome import Reason, Verdict
from deliveries.telemetry.events import OUTCOMES, Attempt, Attempts, Event, Source
from pushhub.common import names
from pushhub.common.clock import duration_text

logger = logging.getLogger(__name__)

#: Endpoints that are remembered. The one that has been failing for longest is forgotten first.
MOST_ENDPOINTS = 10_000
#: Reasons for which the endpoint is not responsible.
NOT_THE_ENDPOINTS = frozenset({Reason.ABORTED, Reason.INTERNAL, Reason.TRANSFORM_FAILED})
#: An endpoint fails after that many nacks in a row, or when that share of the recent results are nacks.
NACKS_IN_A_ROW = 3
RECENT = 20
FAILING_NACKS = 10
#: It is healthy again after that many acks in a row, or when nothing followed an ack for so long.
ACKS_IN_A_ROW = 10
QUIET_SECONDS = 5.0


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
            return f"{name}: healthy again after {duration_text(self.seconds * 1000)}"
        since = datetime.fromtimestamp(self.since, UTC).strftime("%H:%M:%S")
        pause = f", backing off {duration_text(backoff_ms)}" if backoff_ms else ""
        pushes = "1 push" if self.failed == 1 else f"{self.failed} pushes"
        return f"{name}: {self.reason.replace('_', ' ')} since {since}, {pushes} failed{pause}"


class EndpointLog:
    """A push worker's sink for the health of its endpoints: those with a recent nack."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        #: By subscription id, with the subscription's short name.
        self._endpoints: dict[int, tuple[str, EndpointHealth]] = {}
        self._lock = threading.Lock()

    def take(self, events: Sequence[Event]) -> None:
        with self._lock:
            for event in events:
                if isinstance(event, Attempts):
                    self._observe(event)

    def report_recovered(self) -> None:
        """Report endpoints that recovered and have had no requests since. Any thread may call this."""
        with self._lock:
            for subscription_id, (name, health) in list(self._endpoints.items()):
                change = health.settle(self._clock())
                if change is not None:
                    _report(name, change, backoff_ms=0)
                    del self._endpoints[subscription_id]

    def _observe(self, event: Attempts) -> None:
        pk = event.source.subscription_id
        entry = self._endpoints.get(pk)
        if entry is None and all(attempt.verdict is Verdict.ACK for attempt in event.attempts):
            return
        attempts = [
            each for each in event.attempts if each.verdict in OUTCOMES and each.reason not in NOT_THE_ENDPOINTS
        ]
        name, health = entry or (_short_name(event.source), EndpointHealth())
        change = health.observe(attempts)
        if change is not None:
            _report(name, change, backoff_ms=event.source.backoff_ms or 0)
        if not health.is_forgettable:
            self._endpoints[pk] = name, health
        elif entry:
            del self._endpoints[pk]
        if len(self._endpoints) > MOST_ENDPOINTS:
            del self._endpoints[next(iter(self._endpoints))]


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
    def is_forgettable(self) -> bool:
        """Whether nothing is left to remember: healthy, and no nack among the recent results."""
        return not self._reason and not self._recent

    def observe(self, attempts: Iterable[Attempt]) -> Change | None:
        """Take in attempts in their order; returns the last change that they make."""
        change: Change | None = None
        for attempt in attempts:
            is_ack = attempt.verdict is Verdict.ACK
            self.ended = attempt.ended
            self._recent = (self._recent << 1 | (not is_ack)) & ((1 << RECENT) - 1)
            change = (self._ack(attempt) if is_ack else self._nack(attempt)) or change
        # The line counts the whole batch.
        return change and replace(change, failed=self._failed or change.failed)

    def settle(self, now: float) -> Change | None:
        """Return the recovery of an endpoint whose last result was an ack, when nothing else came for a while."""
        if self._reason and self._acks and now - self.ended >= QUIET_SECONDS:
            return self._recover(self.ended)
        return None

    def _ack(self, attempt: Attempt) -> Change | None:
        self._acks += 1
        self._nacks = self._same = 0
        if self._reason:
            return self._recover(attempt.ended) if self._acks >= ACKS_IN_A_ROW else None
        if self._acks >= NACKS_IN_A_ROW:
            self._failed = 0
        return None

    def _nack(self, attempt: Attempt) -> Change | None:
        text = attempt.result_text
        self._acks = 0
        self._nacks += 1
        self._failed += 1
        if self._failed == 1:
            self._since = attempt.ended
        self._same = self._same + 1 if text == self._text else 1
        if self._same == 1:
            self._text, self._text_since = text, attempt.ended
        is_failing = self._nacks >= NACKS_IN_A_ROW or self._recent.bit_count() >= FAILING_NACKS
        if not self._reason and is_failing:
            self._reason = text
            return Change(self._reason, self._since, self._failed, 0.0)
        if self._reason and self._reason != self._text and self._same >= NACKS_IN_A_ROW:
            self._reason = self._text
            return Change(self._reason, self._text_since, self._failed, 0.0)
        return None

    def _recover(self, now: float) -> Change:
        change = Change("", self._since, self._failed, now - self._since)
        self._reason, self._failed, self._recent = "", 0, 0
        return change


def _report(name: str, change: Change, *, backoff_ms: float) -> None:
    fields = {
        "subscription": f"projects/{name.replace('/', '/subscriptions/')}",
        "reason": change.reason or None,
        "failed": change.failed,
    }
    level = logging.WARNING if change.reason else logging.INFO
    extra = {"event": "endpoint.failing" if change.reason else "endpoint.healthy", "fields": fields}
    logger.log(level, "%s", change.describe(name, backoff_ms=backoff_ms), extra=extra)


def _short_name(source: Source) -> str:
    """Return `project/subscription`, which is shorter than the full name."""
    if source.subscription is None:
        return f"subscription {source.subscription_id}"
    return "/".join(names.parse_subscription(source.subscription))
