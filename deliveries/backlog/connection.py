"""The Redis clients of this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import redis
from django.conf import settings

from pushhub.common.outages import outage_or_raise
from pushhub.common.redisclient import connect_to_redis, shared_url
from pushhub.common.redisurls import is_cluster

logger = logging.getLogger(__name__)

#: Redis may pause for a few seconds, for example to fork for a snapshot; a longer wait is an outage.
SOCKET_TIMEOUT_SECONDS = 10


def redis_client() -> redis.Redis:
    """Return the process' client for all keys but those of cells. It has a connection pool and replies in bytes."""
    return client_of(shared_url())


def cells_client() -> redis.Redis:
    """Return the process' client for the keys of cells: the same one, or that of a Cluster."""
    return client_of(settings.REDIS_URL)


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
