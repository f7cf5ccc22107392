"""How many streaming pulls are open. Each process tells Redis of its own streams, and the gauges add them up.

A process with streams tells again every BEAT_SECONDS (deliveries/rpc/bell.py). The entry of a process that was killed
is ignored when it is old.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import Counter

import orjson
import redis
from django.conf import settings

from deliveries.backlog.connection import redis_client, server_ms

logger = logging.getLogger(__name__)

#: A hash: host and process -> when that was, and the number of open streams by subscription.
KEY = "ph:streams"
BEAT_SECONDS = 15.0
STALE_SECONDS = 60.0

_lock = threading.Lock()
_counts: Counter[int] = Counter()
_told_at = 0.0
# A forked process has none of its parent's streams.
os.register_at_fork(after_in_child=_counts.clear)


def opened(subscription_id: int) -> None:
    """Note a stream that was opened. `tell` should follow."""
    with _lock:
        _counts[subscription_id] += 1


def closed(subscription_id: int) -> None:
    """Note a stream that ended. `tell` should follow."""
    with _lock:
        _counts[subscription_id] -= 1
        if not _counts[subscription_id]:
            del _counts[subscription_id]


def is_due() -> bool:
    """Return whether Redis should be told again that the streams of this process are open."""
    return time.monotonic() - _told_at >= BEAT_SECONDS


def count_own() -> int:
    """Return how many streams are open in this process."""
    with _lock:
        return _counts.total()


def tell() -> None:
    """Write the counts of this process to Redis, unless neither metrics nor quotas need them."""
    global _told_at
    if not settings.METRICS and not settings.QUOTAS:
        return
    _told_at = time.monotonic()
    try:
        with _lock:  # of two calls, the later one has the later counts
            client = redis_client()
            if _counts:
                row = {"at": server_ms(client) / 1000, "streams": dict(_counts)}
                client.hset(KEY, _process(), orjson.dumps(row, option=orjson.OPT_NON_STR_KEYS).decode())
            else:
                client.hdel(KEY, _process())
    except redis.RedisError as error:
        logger.warning("open streams are not counted", exc_info=error)


def open_streams(client: redis.Redis) -> Counter[int]:
    """Return the number of open streams of all processes, by the primary key of the subscription.

    May raise redis.RedisError. Entries of processes that are gone are removed.
    """
    total: Counter[int] = Counter()
    now = server_ms(client) / 1000
    for name, text in client.hgetall(KEY).items():
        row = orjson.loads(text)
        if now - row["at"] > STALE_SECONDS:
            client.hdel(KEY, name)
        else:
            total.update({int(subscription_id): count for subscription_id, count in row["streams"].items()})
    return total


def _process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
