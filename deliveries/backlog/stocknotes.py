"""Which deliveries the stock Celery workers have (record.lua): the audit sends again what a dead one had."""

from __future__ import annotations

from typing import NamedTuple

import redis

from deliveries.backlog.codes import STATE_CODES, Place
from deliveries.backlog.records import Lane, cell_key


class Attempt(NamedTuple):
    """An attempt at a delivery that a stock worker has taken."""

    worker: str
    lane: Lane
    message_id: int
    attempt: int

    @property
    def noted(self) -> tuple[str, str]:
        """The key of the worker's set, and the member."""
        delivery = f"{self.message_id}.{self.lane.subscription_id}.{self.lane.region}"
        return cell_key(self.lane.cell, f"stock:{self.worker}"), f"{delivery}#{self.attempt}"


def note_attempt(client: redis.Redis, attempt: Attempt) -> None:
    client.sadd(*attempt.noted)


def end_attempt(client: redis.Redis, attempt: Attempt) -> None:
    client.srem(*attempt.noted)


def may_begin(client: redis.Redis, attempt: Attempt, *, generation: str) -> bool:
    """Return whether the worker still has the delivery, and the delivery its token.

    It hasn't if the worker was taken for dead, or if kombu brought a copy of what was settled.
    """
    pipe = client.pipeline(transaction=False)
    pipe.sismember(*attempt.noted)
    pipe.hget(attempt.lane.places_key, str(attempt.message_id))
    pipe.hget(attempt.lane.state_key, STATE_CODES["generation"])
    is_noted, place, current = pipe.execute()
    return bool(is_noted) and place == Place.OUTSTANDING.encode() and current == generation.encode()
