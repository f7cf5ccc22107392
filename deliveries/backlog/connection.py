"""The Redis clients of this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from pushhub.common.outages import outage_or_raise
from pushhub.common.redisclient import connect_to_redis, shared_url
from pushhub.common.redisurls import is_cluster

logger = logging.getLogger(__name__)

#: Redis may pause for a few seconds, for example to fork for a snapshot; a longer wait is an outage.
SOCKET_TIMEOUT_SECONDS = 10
#: Whoever only looks waits so long. After that, calls fail at once for PAUSE_SECONDS, so that a page waits once.
IMPATIENT_SECONDS, PAUSE_SECONDS = 0.5, 1.0


def redis_client() -> redis.Redis:
    """Return the process' client for all keys but those of cells. It has a connection pool and replies in bytes."""
    return client_of(shared_url())


def cells_client() -> redis.Redis:
    """Return the process' client for the keys of cells: the same one, or that of a Cluster."""
    return client_of(settings.REDIS_URL)


def server_ms(client: redis.Redis) -> float:
    """Return the time of the server, in milliseconds since 1970: clocks of hosts differ. May raise redis.RedisError."""
    seconds, microseconds = client.time()
    return float(seconds * 1000 + microseconds / 1000)


@contextmanager
def beside_an_outage() -> Iterator[None]:
    """Let the work for other cells go on if the node of a cell in a Cluster is away. A single Redis has all cells."""
    try:
        yield
    except redis.RedisError as error:
        if not is_cluster(settings.REDIS_URL):
            raise
        logger.warning("work for a cell is put off: %s", outage_or_raise(error), exc_info=error)


class Steps:
    """Steps that concern several cells. The error of one is raised after the others on a Cluster, else at once."""

    def __init__(self) -> None:
        self._errors: list[redis.RedisError] = []

    def __enter__(self) -> None:
        """Begin a step."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if not isinstance(error, redis.RedisError) or not is_cluster(settings.REDIS_URL):
            return False
        self._errors.append(error)
        return True

    def end(self) -> None:
        for error in self._errors:
            raise error


@cache
def client_of(url: str) -> redis.Redis:
    return connect_to_redis(url, seconds=SOCKET_TIMEOUT_SECONDS, health_check_interval=30)


@cache
def impatient_client_of(url: str, asker: str) -> redis.Redis:
    """Return the process' client for an `asker`. One that gave up makes no other fail.

    People wait for a `page`, load balancers for a `check`, publishers for an `offer` while Redis is silent, and on
    SQLite all who write for an `ack`.
    """
    return connect_to_redis(url, seconds=IMPATIENT_SECONDS, retry=_Impatience())


class _Impatience(Retry):
    """Never tries a call again, and makes calls fail at once for PAUSE_SECONDS after one that had no answer."""

    def __init__(self) -> None:
        super().__init__(NoBackoff(), 0)
        self._not_before = 0.0

    def __deepcopy__(self, _: Any) -> _Impatience:
        """Return what all connections share: redis-py copies it for each."""
        return self

    def call_with_retry(self, *args: Any, **options: Any) -> Any:
        if time.monotonic() < self._not_before:
            raise redis.TimeoutError("Redis did not answer a moment ago")
        try:
            return super().call_with_retry(*args, **options)
        except redis.TimeoutError:
            self._not_before = time.monotonic() + PAUSE_SECONDS
            raise
