"""The process' Redis client."""

from __future__ import annotations

from functools import cache

import redis
from django.conf import settings

#: Waits shorter than that are ordinary (a fork for a snapshot); longer ones are an outage, and the caller decides.
SOCKET_TIMEOUT_SECONDS = 10


def redis_client() -> redis.Redis:
    """One client with its pool a process; replies are bytes."""
    return client_of(settings.REDIS_URL)


@cache
def client_of(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=SOCKET_TIMEOUT_SECONDS,
        socket_connect_timeout=SOCKET_TIMEOUT_SECONDS,
        health_check_interval=30,
    )
