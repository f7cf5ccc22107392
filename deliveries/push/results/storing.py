"""What the database gets of results, in one transaction; and what follows its commit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter

from deliveries.activity import note_activity
from deliveries.backlog.records import Lane, grouped
from deliveries.deadletters.forwarding import Forwarded, forward_dead_letters, is_spent, take_steps, usable_topic_id
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.store import lanerows, statements
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow

NO_LONGER_OWED = frozenset({Verdict.ACK, Verdict.DROP})
#: So many acks of a lane are worth a statement of their own, which takes half the time of one for many lanes.
MANY = 16


def write_results(lanes: dict[Lane, list[PushDelivery]]) -> Forwarded:
    """Delete acked deliveries, and count nacks or forward them as dead letters, in one transaction.

    If a power cut undoes it, the messages are sent again.
    """
    now = utcnow()
    total = Forwarded()
    letters: set[PushDelivery] = set()
    topic_ids = {lane: usable_topic_id(lane.subscription_id) for lane in lanes if any(map(_is_spent, lanes[lane]))}
    with write_transaction(durable=False):
        _delete_settled(lanes)
        for lane, topic_id in topic_ids.items():
            for seek, sought in grouped(lanes[lane], attrgetter("seek")).items():
                part = _forward_spent(lane, sought, topic_id=topic_id, seek=seek)
                letters.update(it for it in sought if it.verdict is Verdict.NACK and it.message_id in part.message_ids)
                total.announce += part.announce
        results = [delivery for deliveries in lanes.values() for delivery in deliveries]
        unowed = _note_nacks([it for it in results if it.verdict is Verdict.NACK and it not in letters], now=now)
    for delivery in unowed:
        delivery.verdict = Verdict.DROP
    for delivery in letters:
        delivery.verdict = Verdict.DEAD_LETTER
    return total


def _delete_settled(lanes: dict[Lane, list[PushDelivery]]) -> None:
    few: list[statements.Settled] = []
    for lane, deliveries in lanes.items():
        settled = [delivery for delivery in deliveries if delivery.verdict in NO_LONGER_OWED]
        for seek, group in grouped(settled, attrgetter("seek")).items():
            ids = [delivery.message_id for delivery in group]
            if len(ids) < MANY:
                few += [statements.Settled(*lane, message_id, seek) for message_id in ids]
            else:
                statements.delete_deliveries(
                    subscription_id=lane.subscription_id, region=lane.region, message_ids=ids, seek=seek
                )
    statements.delete_settled(few)


def _forward_spent(lane: Lane, deliveries: Sequence[PushDelivery], *, topic_id: int | None, seek: int) -> Forwarded:
    spent = [delivery for delivery in deliveries if _is_spent(delivery)]
    if not spent:
        return Forwarded()
    return forward_dead_letters(
        subscription_id=lane.subscription_id,
        region=lane.region,
        attempts={delivery.message_id: delivery.task.attempt for delivery in spent},
        topic_id=topic_id,
        seek=seek,
        results={delivery.message_id: delivery.result_text for delivery in spent},
    )


def _note_nacks(deliveries: Sequence[PushDelivery], *, now: datetime) -> list[PushDelivery]:
    """Count nacks in the database. Return those of messages that are not owed, as an earlier attempt was acked late."""
    count = statements.note_nacks(
        [
            statements.Nack(
                *delivery.lane, delivery.message_id, delivery.seek, delivery.task.attempt, delivery.result_text
            )
            for delivery in deliveries
        ],
        at=now,
    )
    if count == len(deliveries):
        return []
    unowed: list[PushDelivery] = []
    for lane, group in grouped(deliveries, attrgetter("lane")).items():
        ids = [delivery.message_id for delivery in group]
        owed = lanerows.still_waiting(subscription_id=lane.subscription_id, region=lane.region, message_ids=ids)
        unowed += [delivery for delivery in group if delivery.message_id not in owed]
    return unowed


def store_results(lanes: dict[Lane, list[PushDelivery]]) -> None:
    """Commit the results, then offer dead letters and note activity.

    A failure after the commit is harmless: the audit finds dead letters that were not offered, and the next ack notes
    the activity.
    """
    forwarded = write_results(lanes)
    used = {lane.subscription_id for lane in lanes if any(it.verdict is Verdict.ACK for it in lanes[lane])}
    take_steps([*forwarded.announce, partial(note_activity, used)])


def _is_spent(delivery: PushDelivery) -> bool:
    """Return whether this nack was the last attempt that a dead-letter policy allows."""
    settings = delivery.plan.settings if delivery.plan else None
    return delivery.verdict is Verdict.NACK and is_spent(settings, attempts=delivery.task.attempt)
