"""What the data plane counts. Each function does nothing where metrics are off."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Protocol

from deliveries.counters import kinds
from deliveries.counters.counters import counters
from deliveries.rules.outcome import ResponseClass, response_class

LATENCY_BOUNDS_MS = tuple(seconds * 1000 for seconds in kinds.LATENCY_BOUNDS_SECONDS)


class Attempt(Protocol):
    """One delivery attempt by push that has ended."""

    status: int
    reason: str
    latency_ms: float


def attempts_count(*, subscription_id: int, acks: Sequence[Attempt], nacks: Sequence[Attempt]) -> None:
    """Count delivery attempts of one subscription, at some 0.5 µs each: they are many."""
    process_counters = counters()
    if process_counters is None:
        return
    counts: Counter[str] = Counter()
    for is_ack, attempts in ((True, acks), (False, nacks)):
        if attempts:
            latencies_ms = [attempt.latency_ms for attempt in attempts]
            buckets = Counter([bisect_left(LATENCY_BOUNDS_MS, latency_ms) for latency_ms in latencies_ms])
            answers = Counter([(attempt.status, attempt.reason) for attempt in attempts])
            outcome = _outcome(is_ack)
            counts[f"{kinds.PUSH_LATENCY_SUM.name}|{subscription_id}|{outcome}"] = int(sum(latencies_ms) * 1000)
            for bucket, count in buckets.items():
                counts[f"{kinds.PUSH_LATENCY.name}|{subscription_id}|{outcome}|{bucket}"] = count
            for (status, reason), count in answers.items():
                for field in _attempt_fields(subscription_id, outcome, _class_of(status, reason)):
                    counts[field] += count
    if counts:
        process_counters.add_all(counts)


def _outcome(is_ack: bool) -> str:
    return "ack" if is_ack else "nack"


@cache
def _class_of(status: int, reason: str) -> ResponseClass:
    return response_class(status, reason)


def _attempt_fields(subscription_id: int, outcome: str, answer: ResponseClass) -> Sequence[str]:
    fields = [
        f"{kinds.PUSH_REQUESTS.name}|{subscription_id}|{outcome}|{answer}",
        f"{kinds.SENT.name}|{subscription_id}|push",
        f"{(kinds.ACKS if outcome == 'ack' else kinds.NACKS).name}|{subscription_id}|push",
    ]
    if answer == ResponseClass.DEADLINE_EXCEEDED:
        fields.append(f"{kinds.EXPIRED.name}|{subscription_id}|push")
    return fields


def publish_count(*, topic_id: int, messages: int, size_bytes: int) -> None:
    """Count one publish request that was committed."""
    process_counters = counters()
    if process_counters is not None:
        process_counters.add(kinds.TOPIC_REQUESTS, topic_id)
        process_counters.add(kinds.TOPIC_MESSAGES, topic_id, count=messages)
        process_counters.add(kinds.TOPIC_BYTES, topic_id, count=size_bytes)


def pull_sent_count(*, subscription_id: int, messages: int) -> None:
    """Count messages that a puller leased."""
    process_counters = counters()
    if process_counters is not None and messages:
        process_counters.add(kinds.SENT, subscription_id, "pull", count=messages)


def pull_settled_count(*, subscription_id: int, messages: int, outcome: str) -> None:
    """Count messages that a puller acked or nacked."""
    process_counters = counters()
    if process_counters is not None and messages:
        process_counters.add(kinds.ACKS if outcome == "ack" else kinds.NACKS, subscription_id, "pull", count=messages)


def filtered_count(*, subscription_id: int, messages: int) -> None:
    """Count messages that message transforms have filtered, which counts as an ack."""
    process_counters = counters()
    if process_counters is not None and messages:
        process_counters.add(kinds.ACKS, subscription_id, "filter", count=messages)


def dead_letters_count(*, subscription_id: int, messages: int) -> None:
    process_counters = counters()
    if process_counters is not None and messages:
        process_counters.add(kinds.DEAD_LETTERS, subscription_id, count=messages)
