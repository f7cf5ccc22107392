"""What the database gets of results, in one transaction; and what follows its commit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter

from deliveries.activity import note_activity
from deliveries.backlog.records import Lane, grouped
from deliveries.deadletters.forwarding import Forwarded, forward_dead_letters, is_spent, usable_topic_id
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.store import lanerows, statements
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow

logger = logging.getLogger(__name__)

NO_LONGER_OWED = frozenset({Verdict.ACK, Verdict.DROP})


def write_results(lanes: dict[Lane, list[PushDelivery]]) -> Forwarded:
    """Delete acked deliveries, and count nacks or forward them as dead letters, in one transaction.

    If a power cut undoes it, the messages are sent again.
    """
    now = utcnow()
    forwarded: list[tuple[list[PushDelivery], Forwarded]] = []
    unowed: list[PushDelivery] = []
    topic_ids = {lane: usable_topic_id(lane.subscription_id) for lane in lanes if any(map(_is_spent, lanes[lane]))}
    with write_transaction(durable=False):
        for lane, deliveries in lanes.items():
            for seek, sought in grouped(deliveries, attrgetter("seek")).items():
                topic_id = topic_ids.get(lane)
                if letters := _write_lane(lane, sought, topic_id=topic_id, seek=seek, now=now, unowed=unowed):
                    forwarded.append((sought, letters))
    for delivery in unowed:
        delivery.verdict = Verdict.DROP
    return _marked(forwarded)


def _write_lane(
    lane: Lane,
    deliveries: Sequence[PushDelivery],
    *,
    topic_id: int | None,
    seek: int,
    now: datetime,
    unowed: list[PushDelivery],
) -> Forwarded | None:
    """Do as `write_results` with attempts of one lane that had the same `seek`. Return what was forwarded.

    Nacks of messages that are no longer owed are added to `unowed`.
    """
    settled_ids = [delivery.message_id for delivery in deliveries if delivery.verdict in NO_LONGER_OWED]
    if settled_ids:
        statements.delete_deliveries(
            subscription_id=lane.subscription_id, region=lane.region, message_ids=settled_ids, seek=seek
        )
    last_deliveries = [delivery for delivery in deliveries if _is_spent(delivery)]
    forwarded = None
    if last_deliveries:
        forwarded = forward_dead_letters(
            subscription_id=lane.subscription_id,
            region=lane.region,
            attempts={delivery.message_id: delivery.task.attempt for delivery in last_deliveries},
            topic_id=topic_id,
            seek=seek,
            results={delivery.message_id: delivery.result_text for delivery in last_deliveries},
        )
    letters = forwarded.message_ids if forwarded else set()
    nacked = [
        delivery for delivery in deliveries if delivery.verdict is Verdict.NACK and delivery.message_id not in letters
    ]
    if nacked:
        unowed += _note_nacks(lane, nacked, seek=seek, now=now)
    return forwarded


def _note_nacks(lane: Lane, deliveries: Sequence[PushDelivery], *, seek: int, now: datetime) -> list[PushDelivery]:
    """Count nacks in the database. Return those of messages that are not owed, as an earlier attempt was acked late."""
    nacks = [
        statements.Nack(delivery.message_id, delivery.task.attempt, delivery.result_text) for delivery in deliveries
    ]
    count = statements.deliveries_nacked(
        subscription_id=lane.subscription_id, region=lane.region, nacks=nacks, at=now, seek=seek
    )
    if count == len(nacks):
        return []
    ids = [delivery.message_id for delivery in deliveries]
    owed = lanerows.still_waiting(subscription_id=lane.subscription_id, region=lane.region, message_ids=ids)
    return [delivery for delivery in deliveries if delivery.message_id not in owed]


def store_results(lanes: dict[Lane, list[PushDelivery]]) -> None:
    """Commit the results, then offer dead letters and note activity.

    A failure after the commit is harmless: the audit finds dead letters that were not offered, and the next ack notes
    the activity.
    """
    forwarded = write_results(lanes)
    used = {lane.subscription_id for lane in lanes if any(it.verdict is Verdict.ACK for it in lanes[lane])}
    following: list[Callable[[], None]] = [*forwarded.announce, partial(note_activity, used)]
    for follow in following:
        try:
            follow()
        except Exception:
            logger.exception("a step after the commit of %d lanes failed", len(lanes))


def _is_spent(delivery: PushDelivery) -> bool:
    """Return whether this nack was the last attempt that a dead-letter policy allows."""
    settings = delivery.plan.settings if delivery.plan else None
    return delivery.verdict is Verdict.NACK and is_spent(settings, attempts=delivery.task.attempt)


def _marked(forwarded: Iterable[tuple[Sequence[PushDelivery], Forwarded]]) -> Forwarded:
    """Mark the forwarded deliveries as dead letters after the commit, and return everything forwarded."""
    total = Forwarded()
    for deliveries, letters in forwarded:
        total.announce += letters.announce
        for delivery in deliveries:
            if delivery.verdict is Verdict.NACK and delivery.message_id in letters.message_ids:
                delivery.verdict = Verdict.DEAD_LETTER
    return total
