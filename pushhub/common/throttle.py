"""Limits how often a caller may try a password. Redis counts for all processes, or this process while Redis is down.

Attempts are counted under names, for example a user's. Only the bucket number of a name is stored, so there are never
more counters than buckets, whatever names are sent. The bucket depends on the secret key, so nobody can aim for the
bucket of another user. A counter ends with its window, however often it was increased, so nobody is locked out longer.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import redis

from pushhub.common.redisclient import connect_to_redis

WINDOW_SECONDS = 300
BUCKETS = 65_536
#: The longest wait of a login for Redis.
REDIS_SECONDS = 1.0
KEY = "pushhub:attempts:{}"


class LocalCounters:
    """Counters of this process, by bucket."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counters: dict[int, tuple[int, float]] = {}

    def add(self, buckets: Iterable[int]) -> list[tuple[int, float]]:
        """Increase each bucket's counter. Returns the counts, each with the seconds until it starts again."""
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
    """The same counters in Redis, for all processes. Every call may raise redis.RedisError."""

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
        """Return a client. Logins are rare, so a connection per call is cheaper than an open one."""
        return connect_to_redis(self._url, seconds=REDIS_SECONDS)


#: The counters of this process, for the time that Redis is down.
local_counters = LocalCounters()


def attempt(limits: Mapping[str, int], *, redis_url: str, secret: str) -> int:
    """Count an attempt under each of the names. Returns the seconds to wait, or 0 if the attempt is allowed now.

    The count precedes the password check, so that many attempts at once don't all precede the first count. An attempt
    that a name refuses counts under none of those behind it: otherwise what one address is refused would lock out the
    others.
    """
    add = RedisCounters(redis_url).add
    for name, limit in limits.items():
        bucket = bucket_of(name, secret=secret)
        try:
            [(count, seconds)] = add([bucket])
        except redis.RedisError:
            add = local_counters.add
            [(count, seconds)] = add([bucket])
        if count > limit:
            return max(1, round(seconds))
    return 0


def attempt_succeeded(names: Iterable[str], *, redis_url: str, secret: str) -> None:
    """Reset the counters of these names."""
    buckets = [bucket_of(name, secret=secret) for name in names]
    local_counters.forget(buckets)
    try:
        RedisCounters(redis_url).forget(buckets)
    except redis.RedisError:
        return  # Redis's counters expire by themselves


def bucket_of(name: str, *, secret: str) -> int:
    digest = hmac.digest(secret.encode(), f"attempts {name}".encode(errors="replace"), hashlib.sha256)
    return int.from_bytes(digest[:8], "big") % BUCKETS
