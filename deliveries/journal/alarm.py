"""Alarms of journals that have stopped. They are kept in Redis, where the console and the readiness check look."""

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
#: A process repeats its alarm this often. An alarm older than STALE_SECONDS belongs to a process that has ended.
REPEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """The journal of one process, which has stopped."""

    process: str
    reason: str
    #: Seconds since 1970.
    since: float
    #: Events that were not written.
    lost: int


def sound(*, reason: str, since: float, lost: int) -> None:
    """Raise the alarm of this process, or repeat it."""
    row = {"reason": reason, "since": since, "lost": lost, "at": time.time()}
    try:
        default_backlog().client.hset(KEY, _process(), orjson.dumps(row).decode())
    except redis.RedisError:
        logger.debug("the journal's alarm is only in the log: Redis is away")


def clear() -> None:
    """End the alarm of this process."""
    try:
        default_backlog().client.hdel(KEY, _process())
    except redis.RedisError:
        logger.debug("the journal's alarm ends by itself in a minute: Redis is away")


def alarms() -> list[Alarm]:
    """Return the alarms of all processes. Raises redis.RedisError."""
    client = default_backlog().client
    current = []
    rows: dict[Any, Any] = client.hgetall(KEY)
    for name, text in rows.items():
        row = orjson.loads(text)
        if time.time() - row["at"] > STALE_SECONDS:
            client.hdel(KEY, name)
        else:
            current.append(Alarm(name.decode(), row["reason"], row["since"], row["lost"]))
    return current


def _process() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"
