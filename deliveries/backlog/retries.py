"""The nacked pushes that wait in Redis for their next attempts, those that are due first."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from deliveries.backlog.backlog import Backlog
from deliveries.backlog.codes import STATE_CODES, Mode


class Retry(NamedTuple):
    """A delivery that is due at a time in ms since 1970, if no push backoff pauses its lane then."""

    due_ms: float
    #: The Celery message of its next attempt.
    message: bytes


def next_retries(backlog: Backlog, *, regions: Container[str], limit: int) -> tuple[list[Retry], int]:
    """Return the pushes of these regions that are retried first, at most `limit`, and the number of all of them.

    It takes four round trips, besides those of the list of lanes. May raise redis.RedisError.
    """
    lanes = [lane for lane in backlog.lanes() if lane.region in regions]
    pipe = backlog.client.pipeline(transaction=False)
    for lane in lanes:
        pipe.hget(lane.state_key, STATE_CODES["mode"])
    modes = pipe.execute()
    pushed = [lane for lane, mode in zip(lanes, modes, strict=True) if mode is not None and int(mode) != Mode.PULL]
    keys = [lane.root for lane in pushed]
    for key in keys:
        pipe.zcard(f"{key}:z")
        pipe.zrange(f"{key}:z", 0, 0, withscores=True)
    replies = pipe.execute()
    total = sum(replies[0::2])
    firsts = sorted((first[0][1], key) for key, first in zip(keys, replies[1::2], strict=True) if first)[:limit]
    for _, key in firsts:
        pipe.zrange(f"{key}:z", 0, limit - 1, withscores=True)
    due = sorted(
        (due_ms, key, name) for (_, key), rows in zip(firsts, pipe.execute(), strict=True) for name, due_ms in rows
    )[:limit]
    for _, key, name in due:
        pipe.hget(f"{key}:m", name)
    messages = pipe.execute()
    # A delivery without a message was pushed or settled since.
    return [Retry(at, message) for (at, _, _), message in zip(due, messages, strict=True) if message], total
