"""The Redis client of this process."""

from __future__ import annotations

from functools import cache

import redis
from django.conf import settings

from pushhub.common.redisclient import connect_to_redis

#: Redis may pause for a few seconds, for example to fork for a snapshot; a longer wait is an outage.
SOCKET_TIMEOUT_SECONDS = 10


def redis_client() -> redis.Redis:
    """Return the process' client, which has a connection pool and replies in bytes."""
    return client_of(settings.REDIS_URL)


@cache
def client_of(url: str) -> redis.Redis:
    return connect_to_redis(url, seconds=SOCKET_TIMEOUT_SECONDS, health_check_interval=30)
