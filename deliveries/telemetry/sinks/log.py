"""A line of the JSON log for each attempt, up to a rate. Above it, each line says for how many attempts it stands."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from django.conf import settings

from deliveries.backlog.records import grouped
from deliveries.rules.outcome import Verdict, response_class
from deliveries.telemetry.events import OUTCOMES, Attempt, Attempts, Event, Source
from deliveries.telemetry.sinks.sampling import Sample

logger = logging.getLogger("pushhub.attempts")

ATTEMPTED = "delivery.attempted"
DEAD_LETTERED = "delivery.dead_lettered"


class AttemptLog:
    """Acks and nacks have a rate each, in lines a second."""

    def __init__(self, rate: float) -> None:
        self._samples = {outcome: Sample(rate) for outcome in ("nack", "ack")}

    def take(self, events: Sequence[Event]) -> None:
        attempts = [
            (event.source, attempt)
            for event in events
            if isinstance(event, Attempts)
            for attempt in event.attempts
            if attempt.verdict in OUTCOMES
        ]
        groups = grouped(attempts, lambda pair: OUTCOMES[pair[1].verdict])
        for outcome, sample in self._samples.items():
            for (source, attempt), weight in zip(groups[outcome], sample.take(len(groups[outcome])), strict=False):
                event = DEAD_LETTERED if attempt.verdict is Verdict.DEAD_LETTER else ATTEMPTED
                fields = _fields(source, attempt, stands_for=weight)
                logger.info("%s", outcome, extra={"event": event, "fields": fields})


def attempt_log() -> AttemptLog | None:
    """Return the log of this process, or None if the settings have none."""
    rate = settings.LOG_ATTEMPTS_PER_SECOND if settings.LOG_FORMAT == "JSON" else 0
    return _log_of(os.getpid(), rate) if rate else None


@cache
def _log_of(_pid: int, rate: float) -> AttemptLog:
    return AttemptLog(rate)


def _fields(source: Source, attempt: Attempt, *, stands_for: int) -> dict[str, Any]:
    """Return the fields of an attempt's line. They never include a token, payload, attribute or URL."""
    return {
        "subscription": source.subscription,
        "message_id": attempt.message_id,
        "attempt": attempt.attempt,
        "outcome": OUTCOMES[attempt.verdict],
        "status": attempt.status or None,
        "reason": attempt.reason or None,
        "response_class": response_class(attempt.status, attempt.reason),
        "latency_ms": round(attempt.latency_ms, 3),
        "bytes": attempt.bytes,
        "ended": datetime.fromtimestamp(attempt.ended, UTC).isoformat(timespec="milliseconds"),
        "host": source.host,
        "region": source.region,
        "push_window": source.push_window,
        "backoff_ms": source.backoff_ms,
        "worker": source.worker,
        "stands_for": stands_for,
    }
