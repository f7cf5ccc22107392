"""What the data plane counts. Each function does nothing where metrics are off."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Protocol

from deliveries.rules.histogram import bucket_of
from deliveries.rules.outcome import ResponseClass, response_class
from deliveries.telemetry import kinds
from deliveries.telemetry.kinds import Kind
from deliveries.telemetry.sinks.counters import counters
from pushhub.common.errors import PushHubError

#: What a publish request costs at least, in bytes.
LEAST_COST_BYTES = 1000
LATENCY_BOUNDS_MS = tuple(seconds * 1000 for seconds in kinds.LATENCY_BOUNDS_SECONDS)


class Attempt(Protocol):
    """One delivery attempt by push that has ended."""

    status: int
    reason: str
    latency_ms: float


def count_attempts(*, subscription_id: int, acks: Sequence[Attempt], nacks: Sequence[Attempt]) -> None:
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
            counts[f"{kinds.PUSH_LATENCY.field}|{subscription_id}|{outcome}|{kinds.SUM}"] = int(
                sum(latencies_ms) * 1000
            )
            for bucket, count in buckets.items():
                counts[f"{kinds.PUSH_LATENCY.field}|{subscription_id}|{outcome}|{bucket}"] = count
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
        f"{kinds.PUSH_REQUESTS.field}|{subscription_id}|{outcome}|{answer}",
        f"{kinds.SENT.field}|{subscription_id}|push",
        f"{(kinds.ACKS if outcome == 'ack' else kinds.NACKS).field}|{subscription_id}|push",
    ]
    if answer == ResponseClass.DEADLINE_EXCEEDED:
        fields.append(f"{kinds.EXPIRED.field}|{subscription_id}|push")
    return fields


def count_published(*, topic_id: int, requests: Sequence[Sequence[int]]) -> None:
    """Count publish requests that were committed. Each has the bytes of its messages' data."""
    process_counters = counters()
    if process_counters is None:
        return
    sizes = [size for request in requests for size in request]
    request_sizes = [sum(request) for request in requests]
    counts = {
        f"{kinds.TOPIC_REQUESTS.field}|{topic_id}": len(requests),
        f"{kinds.TOPIC_MESSAGES.field}|{topic_id}": len(sizes),
        f"{kinds.TOPIC_BYTES.field}|{topic_id}": sum(sizes),
        f"{kinds.TOPIC_BYTE_COST.field}|{topic_id}": sum(max(size, LEAST_COST_BYTES) for size in request_sizes),
    }
    _add_distribution(counts, f"{kinds.TOPIC_SIZES.field}|{topic_id}", sizes)
    process_counters.add_all(counts)


def count_filtered(messages: Mapping[int, int]) -> None:
    """Count messages that filters kept from subscriptions, by primary key: they count as acknowledged."""
    process_counters = counters()
    if process_counters is not None and messages:
        process_counters.add_all({f"{kinds.ACKS.field}|{pk}|filter": count for pk, count in messages.items()})


def count_pull_sent(*, subscription_id: int, messages: int, delivery_type: str) -> None:
    """Count messages that a puller leased."""
    _count(kinds.SENT, subscription_id, delivery_type, count=messages)


def count_pull_settled(*, subscription_id: int, messages: int, outcome: str, delivery_type: str) -> None:
    """Count messages that a puller acked or nacked."""
    _count(kinds.ACKS if outcome == "ack" else kinds.NACKS, subscription_id, delivery_type, count=messages)


def count_lease_ages(kind: Kind, *, subscription_id: int, delivery_type: str, ages_ms: Sequence[int]) -> None:
    """Count how long messages had been leased when they were acknowledged, or got another ack deadline."""
    process_counters = counters()
    if process_counters is not None and ages_ms:
        counts: dict[str, int] = {}
        _add_distribution(counts, f"{kind.field}|{subscription_id}|{delivery_type}", ages_ms)
        process_counters.add_all(counts)


def count_modacks(*, subscription_id: int, messages: int, delivery_type: str) -> None:
    """Count messages whose ack deadline was changed."""
    _count(kinds.MODACKED, subscription_id, delivery_type, count=messages)


def count_dead_letters(*, subscription_id: int, messages: int) -> None:
    _count(kinds.DEAD_LETTERS, subscription_id, count=messages)


@contextmanager
def request_counted(kind: Kind, resource_id: int) -> Iterator[None]:
    """Count one request by its canonical code; errors go on to the caller."""
    code = "internal"
    try:
        yield
        code = "success"
    except PushHubError as error:
        code = error.code.lower()
        raise
    finally:
        _count(kind, resource_id, code)


@contextmanager
def refusals_counted(topic_id: int) -> Iterator[None]:
    """Count a publish request that is refused. Accepted ones are counted with their messages, by `count_published`."""
    try:
        yield
    except PushHubError as error:
        _count(kinds.TOPIC_REFUSED, topic_id, error.code.lower())
        raise


def count_request(kind: Kind, resource_id: int, *, code: str = "success") -> None:
    _count(kind, resource_id, code)


def _count(kind: Kind, resource_id: int, *labels: str, count: int = 1) -> None:
    process_counters = counters()
    if process_counters is not None and count:
        process_counters.add(kind, resource_id, *labels, count=count)


def _add_distribution(counts: dict[str, int], field: str, values: Iterable[int]) -> None:
    """Add the fields of a distribution to `counts`."""
    for value, count in Counter(values).items():
        name = f"{field}|{_bucket(value)}"
        counts[name] = counts.get(name, 0) + count
        counts[f"{field}|{kinds.SUM}"] = counts.get(f"{field}|{kinds.SUM}", 0) + value * count


@lru_cache(maxsize=4096)
def _bucket(value: int) -> int:
    return bucket_of(value, scale=kinds.DISTRIBUTION_SCALE)
