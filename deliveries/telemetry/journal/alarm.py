"""Alarms of journals that have stopped, or whose segments cannot go into the bucket.

They are kept in Redis, where the console and the readiness check look.
"""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass
from typing import Any

import orjson
import redis

from deliveries.backlog.connection import server_ms
from deliveries.backlog.default import default_backlog

logger = logging.getLogger(__name__)

KEY = "ph:journal:alarms"
#: The suffix of a process's name in its alarm about the bucket.
OF_BUCKET = " bucket"
#: A process repeats its alarm this often. An alarm older than STALE_SECONDS belongs to a process that has ended.
REPEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm of one process: its journal has stopped, or segments of its machine wait for the bucket."""

    process: str
    reason: str
    #: Seconds since 1970.
    since: float
    #: Events that were not written.
    lost: int
    #: Segments that wait for the bucket; 0 for a journal that has stopped.
    waiting: int = 0


def sound(*, reason: str, since: float, lost: int = 0, waiting: int = 0) -> None:
    """Raise an alarm of this process, or repeat it."""
    try:
        client = default_backlog().shared
        row = {"reason": reason, "since": since, "lost": lost, "waiting": waiting, "at": server_ms(client) / 1000}
        client.hset(KEY, _process(of_bucket=bool(waiting)), orjson.dumps(row).decode())
    except redis.RedisError as error:
        logger.warning("the journal's alarm is only in the log", exc_info=error)


def clear(*, of_bucket: bool = False) -> None:
    """End the alarm of this process about its journal, or about the bucket."""
    try:
        default_backlog().shared.hdel(KEY, _process(of_bucket=of_bucket))
    except redis.RedisError as error:
        logger.warning("the journal's alarm ends by itself in a minute", exc_info=error)


def alarms(client: redis.Redis | None = None) -> list[Alarm]:
    """Return the alarms of all processes. Raises redis.RedisError."""
    client = client or default_backlog().shared
    current, now = [], server_ms(client) / 1000
    rows: dict[Any, Any] = client.hgetall(KEY)
    for name, text in rows.items():
        row = orjson.loads(text)
        if now - row["at"] > STALE_SECONDS:
            client.hdel(KEY, name)
        else:
            process = name.decode().removesuffix(OF_BUCKET)
            current.append(Alarm(process, row["reason"], row["since"], row["lost"], row.get("waiting", 0)))
    return current


def _process(*, of_bucket: bool = False) -> str:
    return f"{socket.gethostname()}-{os.getpid()}{OF_BUCKET if of_bucket else ''}"
