"""Limits how often a caller may try a password. Redis counts for all processes, or this process while Redis is down.

Attempts are counted under names, for example a user's. Only the bucket number of a name is stored, so there are never
more counters than buckets, whatever names are sent. The bucket depends on the secret key, so nobody can aim for the
bucket of another user. A counter ends with its window, however often it was increased, so nobody is locked out longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

import redis
from django.utils.crypto import salted_hmac

from pushhub.common.redisclient import connect_to_redis, shared_url

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

    def add(self, bucket: int) -> tuple[int, float]:
        """Increase a bucket's counter. Returns the count, and the seconds until it starts again."""
        now = self._clock()
        with self._lock:
            count, end = self._counters.get(bucket, (0, 0.0))
            if end <= now:
                count, end = 0, now + WINDOW_SECONDS
            self._counters[bucket] = (count + 1, end)
        return count + 1, end - now

    def read(self, bucket: int) -> int:
        count, end = self._counters.get(bucket, (0, 0.0))
        return count if end > self._clock() else 0

    def forget(self, bucket: int) -> None:
        with self._lock:
            self._counters.pop(bucket, None)


def add_in_redis(bucket: int) -> tuple[int, float]:
    """Increase a bucket's counter of all processes, as `LocalCounters.add` does. Raises redis.RedisError."""
    key = KEY.format(bucket)
    with _redis() as client, client.pipeline(transaction=True) as pipe:
        pipe.set(key, 0, ex=WINDOW_SECONDS, nx=True).incr(key).ttl(key)
        _, count, seconds = pipe.execute()
    return count, seconds


def _redis() -> redis.Redis:
    """Return a client. Logins are rare, so a connection per call is cheaper than an open one."""
    return connect_to_redis(shared_url(), seconds=REDIS_SECONDS)


#: The counters of this process, for the time that Redis is down.
local_counters = LocalCounters()


def attempt(limits: Mapping[str, int]) -> int:
    """Count an attempt under each of the names. Returns the seconds to wait, or 0 if the attempt is allowed now.

    The count precedes the password check, so that many attempts at once don't all precede the first count. An attempt
    that a name refuses counts under none of those behind it: otherwise what one address is refused would lock out the
    others.
    """
    add = add_in_redis
    for name, limit in limits.items():
        try:
            count, seconds = add(bucket_of(name))
        except redis.RedisError:
            add = local_counters.add
            count, seconds = add(bucket_of(name))
        if count > limit:
            return max(1, round(seconds))
    return 0


def attempt_succeeded(names: Iterable[str]) -> None:
    """Reset the counters of these names."""
    buckets = [bucket_of(name) for name in names]
    for bucket in buckets:
        local_counters.forget(bucket)
    with suppress(redis.RedisError), _redis() as client:  # Redis's counters expire by themselves
        client.delete(*map(KEY.format, buckets))


def bucket_of(name: str) -> int:
    digest = salted_hmac("attempts", name.encode(errors="replace"), algorithm="sha256").digest()
    return int.from_bytes(digest[:8], "big") % BUCKETS
