"""How often somebody may try a password: counted in Redis, for all processes, or in this process while Redis is away.

Each kind of guess has a name, of which only a bucket number is kept: there are never more counters than buckets,
whatever names are sent. Buckets are chosen with the secret key, so nobody can aim for another one's. A counter ends
with its window, however often it is asked meanwhile: nobody is locked out for longer.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import redis

WINDOW_SECONDS = 300
BUCKETS = 65_536
#: A login waits at most this long for Redis.
REDIS_SECONDS = 1.0
KEY = "pushhub:attempts:{}"


class LocalCounters:
    """Counters of this process, by bucket."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[int, tuple[int, float]] = {}

    def add(self, buckets: Iterable[int]) -> list[tuple[int, float]]:
        """Count one more in each bucket; returns their counts, with the seconds until they begin anew."""
        now = self._clock()
        with self._lock:
            return [self._add(bucket, now) for bucket in buckets]

    def read(self, bucket: int) -> int:
        count, end = self._counters.get(bucket, (0, 0.0))
        return count if end > self._clock() else 0

    def forget(self, buckets: Iterable[int]) -> None:
        with self._lock:
            for bucket in buckets:
                self._counters.pop(bucket, None)

    def _add(self, bucket: int, now: float) -> tuple[int, float]:
        count, end = self._counters.get(bucket, (0, 0.0))
        if end <= now:
            count, end = 0, now + WINDOW_SECONDS
        self._counters[bucket] = (count + 1, end)
        return count + 1, end - now


class RedisCounters:
    """The same counters, shared by every process that uses this Redis. Every call may raise redis.RedisError."""

    def __init__(self, url: str) -> None:
        self._url = url

    def add(self, buckets: Iterable[int]) -> list[tuple[int, float]]:
        keys = [KEY.format(bucket) for bucket in buckets]
        with self._client() as client, client.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.set(key, 0, ex=WINDOW_SECONDS, nx=True)
                pipe.incr(key)
                pipe.ttl(key)
            answers = pipe.execute()
        return list(zip(answers[1::3], answers[2::3], strict=True))

    def forget(self, buckets: Iterable[int]) -> None:
        keys = [KEY.format(bucket) for bucket in buckets]
        with self._client() as client:
            if keys:
                client.delete(*keys)

    def _client(self) -> redis.Redis:
        """Logins are rare: a connection each is cheaper than one that is kept."""
        return redis.Redis.from_url(
            self._url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS, retry=None
        )


#: Of the process, for as long as Redis is away.
local_counters = LocalCounters()


def attempt(limits: Mapping[str, int], *, redis_url: str, secret: str) -> int:
    """Count an attempt under each of the names; returns how many seconds to wait, or 0 if it may be made now.

    It counts before the password is looked at, so that many attempts at once don't all come before the first count.
    """
    buckets = [bucket_of(name, secret=secret) for name in limits]
    try:
        counts = RedisCounters(redis_url).add(buckets)
    except redis.RedisError:
        counts = local_counters.add(buckets)
    waits = [left for (count, left), limit in zip(counts, limits.values(), strict=True) if count > limit]
    return max(1, round(max(waits))) if waits else 0


def attempt_succeeded(names: Iterable[str], *, redis_url: str, secret: str) -> None:
    """Forget what was counted under these names."""
    buckets = [bucket_of(name, secret=secret) for name in names]
    local_counters.forget(buckets)
    try:
        RedisCounters(redis_url).forget(buckets)
    except redis.RedisError:
        return  # the counters there end by themselves


def bucket_of(name: str, *, secret: str) -> int:
    digest = hmac.digest(secret.encode(), f"attempts {name}".encode(errors="replace"), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % BUCKETS
