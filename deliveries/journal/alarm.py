"""Journals that stand still, for people to see: kept in Redis, where the console and the health check look."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import orjson
import redis

from deliveries.backlog.default import default_backlog

logger = logging.getLogger(__name__)

KEY = "ph:journal:alarms"
#: Who is in trouble says so again that often; older words are those of a process that is no more.
REPEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """One process' journal that stands still."""

    process: str
    reason: str
    #: Seconds since 1970.
    since: float
    #: Events that no journal has.
    lost: int


def sound(*, reason: str, since: float, lost: int) -> None:
    """Say, or say again, that this process' journal stands still."""
    row = {"reason": reason, "since": since, "lost": lost, "at": time.time()}
    try:
        default_backlog().client.hset(KEY, _process(), orjson.dumps(row).decode())
    except redis.RedisError:
        logger.debug("the journal's alarm is only in the log: Redis is away")


def clear() -> None:
    try:
        default_backlog().client.hdel(KEY, _process())
    except redis.RedisError:
        logger.debug("the journal's alarm ends by itself in a minute: Redis is away")


def alarms() -> list[Alarm]:
    """Every journal that stands still; may raise redis.RedisError."""
    client = default_backlog().client
    found = []
    rows: dict[Any, Any] = client.hgetall(KEY)
    for name, text in rows.items():
        row = orjson.loads(text)
        if time.time() - row["at"] > STALE_SECONDS:
            client.hdel(KEY, name)
        else:
            found.append(Alarm(name.decode(), row["reason"], row["since"], row["lost"]))
    return found


def _process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
