"""Waiting for messages in the event loop: a thread for each idle stream would be far too many threads."""

from __future__ import annotations

import asyncio
from functools import cache

import redis
from django.conf import settings
from redis.exceptions import RedisClusterException

from deliveries.backlog.records import pull_bell
from pushhub.common.redisclient import connect_to_redis_in_loop

#: A sleeper looks at least so often for leases that have lapsed, as pulling does (deliveries/pull/leasing.py).
LONGEST_SLEEP_SECONDS = 1.0


class Bell:
    """Waits until a pull subscription may have messages, without a thread."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._client = connect_to_redis_in_loop(url)

    async def wait(self, subscription_id: int, *, seconds: float) -> None:
        """Wait until messages may be ready, at most `seconds` and LONGEST_SLEEP_SECONDS; also while Redis is away."""
        sleep = max(min(seconds, LONGEST_SLEEP_SECONDS), 0.01)
        try:
            await self._client.brpop([pull_bell(subscription_id)], timeout=sleep)
        except (redis.RedisError, RedisClusterException, OSError):
            await asyncio.sleep(sleep)


def bell() -> Bell:
    """Return the bell of the running event loop."""
    return _bell_of(asyncio.get_running_loop())


@cache
def _bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    return Bell(settings.REDIS_URL)
