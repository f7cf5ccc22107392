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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings

from deliveries.backlog.connection import client_of
from deliveries.telemetry.kinds import COUNTERS, Kind
from pushhub.common.background import IDLE_SECONDS, BackgroundThread

logger = logging.getLogger(__name__)

KEY = "ph:counters"
FLUSH_SECONDS = 1.0
#: Fields that one HSCAN returns, and one HDEL removes.
SCAN_SIZE = 1000


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


class Counters:
    """The counters of one process. `add` may be called from any thread and never waits for Redis."""

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._thread = BackgroundThread("counters", self._gather_and_flush, at_end=self._flush)
        self._is_started = False

    def add(self, kind: Kind, resource_id: int, *labels: str, count: int = 1) -> None:
        self.add_all({"|".join((kind.field, str(resource_id), *labels)): count})

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add values by field."""
        with self._lock:
            self._counts.update(counts)
            if not self._is_started and not self._thread.stopping.is_set():
                self._is_started = True
                self._thread.start()
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
            self._flush()

    def _flush(self) -> None:
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
    return _counters_of(os.getpid(), settings.REDIS_URL) if settings.METRICS else None


@cache
def _counters_of(_pid: int, redis_url: str) -> Counters:
    """Cache by process: a fork has its parent's counts but not its thread."""
    created = Counters(redis_url)
    atexit.register(created.close)
    return created


def read_counters(client: redis.Redis) -> Iterator[CounterValue]:
    """Yield every counter in Redis. May raise redis.RedisError."""
    for name, value in client.hscan_iter(KEY, count=SCAN_SIZE):
        field = name.decode()
        kind_name, resource_id, *labels = field.split("|")
        kind = COUNTERS.get(kind_name)
        if kind is not None and len(labels) == len(kind.counter or ()) + kind.is_distribution:
            yield CounterValue(kind, int(resource_id), tuple(labels), int(value), field)


def remove_counters(client: redis.Redis, fields: Iterable[str]) -> None:
    """Remove the counters of deleted resources."""
    names = list(fields)
    for start in range(0, len(names), SCAN_SIZE):
        client.hdel(KEY, *names[start : start + SCAN_SIZE])
