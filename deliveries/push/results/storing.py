"""What the database gets of results, and what follows its commit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter

from django.db import connection

from deliveries.activity import note_activity
from deliveries.backlog.records import Lane, grouped
from deliveries.deadletters.forwarding import forward_dead_letters, is_spent, take_steps, usable_topic_id
from deliveries.deadletters.moving import batches
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.store import lanerows, statements
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow
from pushhub.common.outages import outage_of

logger = logging.getLogger(__name__)

NO_LONGER_OWED = frozenset({Verdict.ACK, Verdict.DROP})
#: So many acks of a lane are worth a statement of their own, which takes half the time of one for many lanes.
MANY = 16


def write_results(lanes: dict[Lane, list[PushDelivery]]) -> None:
    """Delete acked deliveries and count nacks in one transaction; then forward dead letters, a few in each further one.

    The last nack of a message is only counted if the message can't be forwarded: a worker that is killed before that
    sends it again as the same attempt. If a power cut undoes any of them, the messages are sent again, too.
    """
    now = utcnow()
    spent: list[PushDelivery] = []
    others: list[PushDelivery] = []
    for deliveries in lanes.values():
        for delivery in deliveries:
            if delivery.verdict is Verdict.NACK:
                (spent if _is_spent(delivery) else others).append(delivery)
    with write_transaction(durable=False):
        _delete_settled(lanes)
        unowed = _note_nacks(others, now=now)
    for lane, group in grouped(spent, attrgetter("lane")).items():
        try:
            _forward_spent(lane, group)
        except Exception as error:
            if outage_of(error) is not None:
                raise
            logger.exception("messages of %s cannot be forwarded to the dead-letter topic", lane)
            connection.close()  # it may still be in the transaction, which nobody would end
    if kept := [delivery for delivery in spent if delivery.verdict is Verdict.NACK]:
        with write_transaction(durable=False):
            unowed += _note_nacks(kept, now=now)
    for delivery in unowed:
        delivery.verdict = Verdict.DROP


def _delete_settled(lanes: dict[Lane, list[PushDelivery]]) -> None:
    few: list[statements.Settled] = []
    for lane, deliveries in lanes.items():
        settled = [delivery for delivery in deliveries if delivery.verdict in NO_LONGER_OWED]
        for seek, group in grouped(settled, attrgetter("seek")).items():
            ids = [delivery.message_id for delivery in group]
            if len(ids) < MANY:
                few += [statements.Settled(*lane, message_id, seek) for message_id in ids]
            else:
                statements.delete_deliveries(**lane._asdict(), message_ids=ids, seek=seek)
    statements.delete_settled(few)


def _forward_spent(lane: Lane, spent: Sequence[PushDelivery]) -> None:
    """Forward messages to the dead-letter topic, a few in each transaction."""
    topic_id = usable_topic_id(lane.subscription_id)
    if topic_id is None:
        return
    for seek, sought in grouped(spent, attrgetter("seek")).items():
        by_id = {delivery.message_id: delivery for delivery in sought}
        for ids in batches(sorted(by_id), topic_id=topic_id):
            with write_transaction(durable=False):
                forwarded = forward_dead_letters(
                    **lane._asdict(),
                    attempts={message_id: by_id[message_id].task.attempt for message_id in ids},
                    topic_id=topic_id,
                    seek=seek,
                    results={message_id: by_id[message_id].result_text for message_id in ids},
                )
            for delivery in sought:
                if delivery.message_id in forwarded.message_ids:
                    delivery.verdict = Verdict.DEAD_LETTER
            forwarded.announce_all()


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
        owed = lanerows.still_waiting(**lane._asdict(), message_ids=ids)
        unowed += [delivery for delivery in group if delivery.message_id not in owed]
    return unowed


def store_results(lanes: dict[Lane, list[PushDelivery]]) -> None:
    """Commit the results, then note activity. If that fails, the next ack notes it."""
    write_results(lanes)
    used = {lane.subscription_id for lane in lanes if any(it.verdict is Verdict.ACK for it in lanes[lane])}
    take_steps([partial(note_activity, used)])


def _is_spent(nack: PushDelivery) -> bool:
    """Return whether a nack was the last attempt that a dead-letter policy allows."""
    settings = nack.plan.settings if nack.plan else None
    return is_spent(settings, attempts=nack.task.attempt)
