"""Counters of all processes, added up in Redis.

Each process counts in memory, and a thread adds what has gathered to one Redis hash every second or so. The web process
reads the hash for `/metrics`. A hash works where prometheus_client's multiprocess mode does not: in containers, which
share no folder. When Redis loses the hash the counters start again at zero, which Prometheus takes for a restart.

A counter's field in the hash is its name, the primary key of the subscription or topic, and the values of its labels,
joined by `|`. Names are looked up when the hash is read, so labels stay bounded by the resources that exist.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain, islice
from typing import Any

import redis
from django.conf import settings

from deliveries.backlog.connection import client_of
from deliveries.backlog.records import all_cells, cell_key
from deliveries.backlog.scripts import Clients
from deliveries.rules.histogram import bucket_of
from deliveries.rules.outcome import FILTER, ResponseClass, Verdict, response_class
from deliveries.telemetry import kinds
from deliveries.telemetry.events import (
    OUTCOMES,
    Attempt,
    Attempts,
    DeadLettered,
    Event,
    Extended,
    Published,
    Sent,
    Settled,
)
from deliveries.telemetry.kinds import COUNTERS, Kind
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.redisclient import shared_url

logger = logging.getLogger(__name__)

KEY = "ph:counters"
FLUSH_SECONDS = 1.0
#: What a publish request costs at least, in bytes.
LEAST_COST_BYTES = 1000
LATENCY_BOUNDS_MS = tuple(seconds * 1000 for seconds in kinds.LATENCY_BOUNDS_SECONDS)
#: Fields that one HSCAN returns, and one HDEL removes.
SCAN_SIZE = 1000

#: What is to be added, by field.
Counts = defaultdict[str, int]
#: `subscription` or `topic`, and its primary key.
Resource = tuple[str, int]


@dataclass(frozen=True, slots=True)
class CounterValue:
    """One counter: which it is, the primary key of its subscription or topic, its labels and its value.

    The last of the labels of a distribution is its bucket, or SUM.
    """

    kind: Kind
    resource_id: int
    labels: tuple[str, ...]
    value: int
    field: str

    @property
    def resource(self) -> Resource:
        return self.kind.resource, self.resource_id


class Counters:
    """The counters of one process. `add` may be called from any thread and never waits for Redis."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread = BackgroundThread("counters", self._gather_and_flush, at_end=self.flush)

    def take(self, events: Sequence[Event]) -> None:
        """Count events at some 0.5 µs for each message: they are many."""
        counts: Counts = defaultdict(int)
        for event in events:
            _COUNTS[type(event)](counts, event)
        if counts:
            self.add(counts)

    def add(self, counts: Mapping[str, int]) -> None:
        """Add values by field."""
        with self._lock:
            self._counts.update(counts)
        self._thread.start_once()
        self._ready.set()

    def close(self, timeout: float = 5.0) -> None:
        """Flush what has gathered, and end the thread."""
        self._thread.stopping.set()
        self._ready.set()
        self._thread.stop(timeout=timeout)

    def _gather_and_flush(self) -> None:
        if self._ready.wait(IDLE_SECONDS):
            self._thread.stopping.wait(FLUSH_SECONDS)
            self._ready.clear()
            self.flush()

    def flush(self) -> None:
        """Write what has gathered. If Redis is away, the thread does so later."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            pipe = client_of(self._redis_url).pipeline(transaction=False)
            for field, count in counts.items():
                pipe.hincrby(KEY, field, count)
            pipe.execute()
        except redis.RedisError as error:
            # Some of the pipeline may have run. Counting a second twice is better than losing an outage's counts.
            with self._lock:
                self._counts.update(counts)
            self._ready.set()
            logger.warning("counters wait for Redis", exc_info=error)


def counters() -> Counters | None:
    """Return the counters of this process, or None where metrics are off."""
    return _counters_of(os.getpid(), shared_url()) if settings.METRICS else None


@cache
def _counters_of(_pid: int, redis_url: str) -> Counters:
    """Cache by process: a fork has its parent's counts but not its thread."""
    created = Counters(redis_url)
    atexit.register(created.close)
    return created


def read_counters(clients: Clients) -> Iterator[CounterValue]:
    """Yield every counter in Redis. May raise redis.RedisError."""
    # A scan may return a field twice, and the fields of the hashes are added up.
    hashes = (dict(client.hscan_iter(key, count=SCAN_SIZE)) for client, key in _keys(clients))
    for name, value in chain.from_iterable(fields.items() for fields in hashes):
        field = name.decode()
        kind_name, resource_id, *labels = field.split("|")
        kind = COUNTERS.get(kind_name)
        if kind is not None and len(labels) == len(kind.counter or ()) + kind.is_distribution:
            yield CounterValue(kind, int(resource_id), tuple(labels), int(value), field)


def remove_counters(clients: Clients, fields: Iterable[str]) -> None:
    """Remove the counters of deleted resources."""
    names = list(fields)
    for start in range(0, len(names), SCAN_SIZE):
        for client, key in _keys(clients):
            client.hdel(key, *names[start : start + SCAN_SIZE])


def _keys(clients: Clients) -> list[tuple[redis.Redis, str]]:
    """Return the hashes of all counters. Some of those of subscriptions are with their cells (places.lua)."""
    keys = dict.fromkeys(cell_key(cell, "counters") for cell in all_cells())
    return [(clients.shared, KEY), *((clients.cells, key) for key in keys if key != KEY)]


def _attempts(counts: Counts, event: Attempts) -> None:
    pk = event.source.subscription_id
    acks = [attempt for attempt in event.attempts if attempt.verdict is Verdict.ACK]
    _pushes(counts, pk, "ack", acks)
    if len(acks) == len(event.attempts):
        return
    others = [attempt for attempt in event.attempts if attempt.verdict is not Verdict.ACK]
    _pushes(counts, pk, "nack", [attempt for attempt in others if attempt.verdict in OUTCOMES])
    if filtered := sum(attempt.verdict is Verdict.DROP and attempt.reason == FILTER for attempt in others):
        counts[f"{kinds.ACKS.field}|{pk}|filter"] += filtered


def _pushes(counts: Counts, pk: int, outcome: str, attempts: Sequence[Attempt]) -> None:
    if not attempts:
        return
    latencies_ms = [attempt.latency_ms for attempt in attempts]
    latency = f"{kinds.PUSH_LATENCY.field}|{pk}|{outcome}"
    counts[f"{latency}|{kinds.SUM}"] += int(sum(latencies_ms) * 1000)
    for bucket, count in Counter([bisect_left(LATENCY_BOUNDS_MS, latency_ms) for latency_ms in latencies_ms]).items():
        counts[f"{latency}|{bucket}"] += count
    counts[f"{kinds.SENT.field}|{pk}|push"] += len(attempts)
    counts[f"{(kinds.ACKS if outcome == 'ack' else kinds.NACKS).field}|{pk}|push"] += len(attempts)
    for (status, reason), count in Counter([(attempt.status, attempt.reason) for attempt in attempts]).items():
        answer = response_class(status, reason)
        counts[f"{kinds.PUSH_REQUESTS.field}|{pk}|{outcome}|{answer}"] += count
        if answer == ResponseClass.DEADLINE_EXCEEDED:
            counts[f"{kinds.EXPIRED.field}|{pk}|push"] += count


def _published(counts: Counts, event: Published) -> None:
    topic = event.topic.pk
    sizes = [len(message.data) for message in event.messages]
    requests = event.publishes or [len(sizes)]
    remaining = iter(sizes)
    costs = [max(sum(islice(remaining, messages)), LEAST_COST_BYTES) for messages in requests]
    counts[f"{kinds.TOPIC_REQUESTS.field}|{topic}"] += len(requests)
    counts[f"{kinds.TOPIC_MESSAGES.field}|{topic}"] += len(sizes)
    counts[f"{kinds.TOPIC_BYTES.field}|{topic}"] += sum(sizes)
    counts[f"{kinds.TOPIC_BYTE_COST.field}|{topic}"] += sum(costs)
    _distribution(counts, f"{kinds.TOPIC_SIZES.field}|{topic}", sizes)
    for owed in event.owed:
        if owed.subscriber.filter and len(owed.indices) < len(event.ids):
            counts[f"{kinds.ACKS.field}|{owed.subscriber.id}|filter"] += len(event.ids) - len(owed.indices)


def _sent(counts: Counts, event: Sent) -> None:
    counts[f"{kinds.SENT.field}|{event.subscription_id}|{event.delivery_type}"] += event.messages


def _extended(counts: Counts, event: Extended) -> None:
    counts[f"{kinds.MODACKED.field}|{event.subscription_id}|{event.delivery_type}"] += event.messages
    _distribution(counts, f"{kinds.MODACK_LATENCY.field}|{event.subscription_id}|{event.delivery_type}", event.ages_ms)


def _settled(counts: Counts, event: Settled) -> None:
    if event.outcome in ("ack", "nack"):
        resource = f"{event.source.subscription_id}|{event.event}"
        counts[f"{(kinds.ACKS if event.outcome == 'ack' else kinds.NACKS).field}|{resource}"] += len(event.ids)
        _distribution(counts, f"{kinds.ACK_LATENCY.field}|{resource}", event.ages_ms)


def _dead_lettered(counts: Counts, event: DeadLettered) -> None:
    counts[f"{kinds.DEAD_LETTERS.field}|{event.source.subscription_id}"] += len(event.attempts)


def _distribution(counts: Counts, field: str, values: Iterable[int]) -> None:
    for value, count in Counter(values).items():
        counts[f"{field}|{_bucket(value)}"] += count
        counts[f"{field}|{kinds.SUM}"] += value * count


@lru_cache(maxsize=4096)
def _bucket(value: int) -> int:
    return bucket_of(value, scale=kinds.DISTRIBUTION_SCALE)


_COUNTS: dict[type[Event], Callable[[Counts, Any], None]] = {
    Attempts: _attempts,
    Published: _published,
    Sent: _sent,
    Extended: _extended,
    Settled: _settled,
    DeadLettered: _dead_lettered,
}
