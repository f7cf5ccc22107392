"""The one way to a Redis: from the URL of a setting to a client."""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio

#: The longest time that a connection may take to open.
CONNECT_SECONDS = 10


def connect_to_redis(url: str, *, seconds: float, **options: Any) -> redis.Redis:
    """Return a client with a connection pool, which waits `seconds` for an answer and at most 10 s to connect."""
    timeouts = {"socket_timeout": seconds, "socket_connect_timeout": min(seconds, CONNECT_SECONDS)}
    return redis.Redis.from_url(url, **timeouts, **options)


def connect_to_redis_in_loop(url: str) -> redis.asyncio.Redis:
    """Return a client for the running event loop."""
    return redis.asyncio.Redis.from_url(url)
