"""A message's way through each subscription: its place, its attempts, and its next attempt."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import redis
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from deliveries.backlog import codes
from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.inspection import words
from deliveries.inspection.attempts import Attempt, Attempts, attempts_find
from deliveries.inspection.lanes import message_places
from deliveries.inspection.status import Condition, subscription_status
from deliveries.models import Delivery
from pushhub.common.rows import row_or_none
from subscriptions.models import Subscription


class Place(StrEnum):
    """Where a message is on its way to a subscription."""

    WAITING = "waiting"
    RETRYING = "retrying"
    OUTSTANDING = "outstanding"
    ACKED = "acked"
    DEAD_LETTERED = "dead_lettered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    GONE = "gone"


#: The place of a message whose last event in the journal has this name and outcome.
ENDS = {
    ("dead_letter", "dead_letter"): Place.DEAD_LETTERED,
    ("push", "ack"): Place.ACKED,
    ("pull", "ack"): Place.ACKED,
    ("streaming_pull", "ack"): Place.ACKED,
    # A message transform filtered it.
    ("filter", "ack"): Place.ACKED,
    ("drop", "drop"): Place.DROPPED,
}


#: Conditions in which a message isn't tried although its retry is due.
HELD_BACK = (Condition.BACKING_OFF, Condition.PAUSED, Condition.NO_WORKER, Condition.REDIS_DOWN, Condition.DETACHED)


@dataclass(frozen=True, slots=True)
class Way:
    """A message's way to one subscription."""

    subscription: str
    subscription_id: int
    place: Place
    attempts: Sequence[Attempt]
    #: The ms until the next attempt, or None if that isn't known.
    next_attempt_ms: float | None = None


def message_ways(message_id: int, subscriptions: QuerySet[Subscription]) -> tuple[list[Way], Attempts]:
    """Return the message's way to each of these subscriptions that it was for, and all of its events in the journal."""
    rows = Delivery.objects.filter(message=message_id, subscription__in=subscriptions.order_by())
    waiting = list(rows.select_related("subscription__project").order_by("subscription_id"))
    journal = attempts_find(message_id, around=[row.last_attempt_at for row in waiting if row.last_attempt_at])
    journaled = {attempt.subscription_id for attempt in journal.events if attempt.subscription_id}
    visible = set(subscriptions.order_by().filter(pk__in=journaled).values_list("pk", flat=True))
    ways = [_waiting_way(row, journal.events) for row in waiting]
    ended = sorted(visible - {row.subscription_id for row in waiting})
    return ways + [_ended_way(subscription_id, journal.events) for subscription_id in ended], journal


def why_waiting(way: Way) -> str:
    """Return why the message waits and when its next attempt is, or "" if it doesn't wait."""
    if way.place not in (Place.WAITING, Place.RETRYING, Place.OUTSTANDING):
        return ""
    subscription = row_or_none(Subscription.objects.select_related("project").filter(pk=way.subscription_id))
    status = subscription_status(subscription) if subscription is not None else None
    if way.next_attempt_ms and (status is None or status.condition not in HELD_BACK):
        return _("Its next attempt is due in %(duration)s.") % {"duration": words.duration_text(way.next_attempt_ms)}
    if status is None or (way.place == Place.OUTSTANDING and status.condition not in HELD_BACK):
        return ""
    return words.status_sentence(status)


def _waiting_way(row: Delivery, attempts: Sequence[Attempt]) -> Way:
    place, due_ms = Place.WAITING, None
    try:
        stored, due_at_ms = message_places(default_backlog(), Lane(row.subscription_id, row.region), row.message_id)
    except redis.RedisError:
        stored, due_at_ms = None, None
    if stored in (codes.Place.OUTSTANDING, codes.Place.LEASED):
        place = Place.OUTSTANDING
    elif due_at_ms is not None:
        place, due_ms = Place.RETRYING, max(due_at_ms - time.time() * 1000, 0.0)
    own = [attempt for attempt in attempts if attempt.subscription_id == row.subscription_id]
    return Way(row.subscription.name, row.subscription_id, place, own, due_ms)


def _ended_way(subscription_id: int, attempts: Sequence[Attempt]) -> Way:
    own = [attempt for attempt in attempts if attempt.subscription_id == subscription_id]
    last = own[-1]
    place = ENDS.get((last.event, last.outcome), Place.GONE)
    if last.result == "expired" or last.event == "expire":
        place = Place.EXPIRED
    return Way(last.subscription, subscription_id, place, own)
