"""The timed tasks that beat has sent and no worker has done, by which checks know maintenance that gets nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from deliveries.backlog.records import PREFIX

#: Sorted set: task with its arguments -> when it was sent, by Redis' clock, in seconds. One that fails stays until one
#: like it succeeds.
KEY = f"{PREFIX}timed"


class SentTask(NamedTuple):
    """A task that waits, is running or has failed, and the seconds since it was sent first."""

    name: str
    seconds: float


def task_name(task: str, arguments: Sequence[object]) -> str:
    """Return what a task is called here, and by its lease."""
    return ".".join([task, *map(str, arguments)])


def note_sent(client: redis.Redis, name: str) -> None:
    client.zadd(KEY, {name: _now(client)}, nx=True)


def note_done(client: redis.Redis, name: str) -> None:
    client.zrem(KEY, name)


def forget_sent(client: redis.Redis) -> None:
    """Forget all tasks: another beat may have another schedule."""
    client.delete(KEY)


def oldest_sent(client: redis.Redis) -> SentTask | None:
    """Return the task that was sent first among those that are not done."""
    first: Any = client.zrange(KEY, 0, 0, withscores=True)
    return SentTask(first[0][0].decode(), max(_now(client) - first[0][1], 0.0)) if first else None


def _now(client: redis.Redis) -> float:
    now: Any = client.time()
    return float(now[0] + now[1] / 1e6)
