"""Builds the events of pushes."""

from __future__ import annotations

from typing import Any

from deliveries.rules.outcome import Verdict
from deliveries.telemetry.events import Attempt, Attempts, Source

SUBSCRIPTION = "projects/shop/subscriptions/hello"
SOURCE = Source(7, "local", SUBSCRIPTION, topic_id=3, host="shop.example", push_window=5, backoff_ms=0, worker="w")


def attempt(message_id: int = 1, verdict: Verdict = Verdict.ACK, **values: Any) -> Attempt:
    """Return an attempt that ended with 204, or with 503 unless it was acked."""
    defaults: dict[str, Any] = {
        "task_id": str(message_id),
        "message_id": str(message_id),
        "attempt": 1,
        "verdict": verdict,
        "status": 204 if verdict is Verdict.ACK else 503,
        "reason": "",
        "latency_ms": 20.0,
        "ended": 1_795_336_271.0,
        "bytes": 5,
        "answer": "",
        "retry_in_ms": 0,
        "trace": None,
        "shown": 0,
    }
    return Attempt(**defaults | values)


def attempts(*all_attempts: Attempt, source: Source = SOURCE) -> Attempts:
    return Attempts(source, all_attempts)
