"""What an operator does with messages that an endpoint will never take: dead-letter them at once, or skip them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from operator import attrgetter

import redis

from deliveries.backlog.backlog import WHICHEVER
from deliveries.backlog.default import default_backlog
from deliveries.backlog.elsewhere import forget_ended
from deliveries.backlog.records import Lane, grouped
from deliveries.deadletters.forwarding import Moved, dead_letter_topic_usable, forward_dead_letters
from deliveries.deadletters.moving import batches
from deliveries.models import Delivery
from deliveries.rules.regions import require_transit
from deliveries.store import lanerows, statements
from deliveries.store.regionholds import holds
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.events import Settled, Source
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.errors import FailedPrecondition
from pushhub.common.outages import outage_or_raise
from subscriptions import audit
from subscriptions.models import Subscription


class Settlement(StrEnum):
    """How messages leave a subscription without an ack."""

    DEAD_LETTER = "dead_letter"
    #: Nobody delivers them any more.
    SKIP = "skip"


#: What each is called in the table of permissions and in the audit log.
METHODS = {
    Settlement.DEAD_LETTER: "pushhub.v1.DeadLetters.DeadLetterMessages",
    Settlement.SKIP: "pushhub.v1.DeadLetters.SkipMessages",
}


def settle_messages(source: Subscription, ids: Sequence[int], *, settlement: Settlement) -> int:
    """End those of these deliveries of a subscription that wait, and return their number.

    An attempt that is under way is not called back, and its result changes nothing. Raises FailedPrecondition if the
    subscription has no dead-letter topic that its service agent may publish to, or that excludes a message's region.
    """
    topic = dead_letter_topic_usable(source) if settlement is Settlement.DEAD_LETTER else None
    if settlement is Settlement.DEAD_LETTER and topic is None:
        raise FailedPrecondition(
            f"The subscription has no dead-letter topic, or its project's service agent lacks a permission "
            f"(resource={source.subscription_id})."
        )
    deliveries = Delivery.objects.filter(subscription=source, message_id__in=ids).order_by("message_id")
    rows = {row.message_id: row for row in deliveries}
    groups = grouped(rows.values(), attrgetter("region", "seek"))
    if topic is not None:
        for region, _ in groups:
            require_transit(topic.message_storage_policy, region, call="DeadLetterMessages")
    topic_id = topic.pk if topic is not None else None
    return sum(
        _settle(source, region, seek, {message_id: rows[message_id] for message_id in batch}, settlement, topic_id)
        for (region, seek), group in groups.items()
        for batch in batches([row.message_id for row in group], topic_id=topic_id)
    )


def _settle(
    source: Subscription,
    region: str,
    seek: int,
    rows: Mapping[int, Delivery],
    settlement: Settlement,
    topic_id: int | None,
) -> int:
    lane = Lane(source.pk, region)
    leases = _leases_spent(lane, list(rows))
    attempts = {message_id: row.attempts + leases.get(message_id, 0) for message_id, row in rows.items()}
    with write_transaction():
        if settlement is Settlement.DEAD_LETTER:
            moved = forward_dead_letters(
                **lane._asdict(),
                attempts=attempts,
                topic_id=topic_id,
                seek=seek,
                results={message_id: row.last_result for message_id, row in rows.items()},
            )
            ids = sorted(moved.message_ids)
        else:
            ids = lanerows.still_waiting(**lane._asdict(), message_ids=list(rows), seek=seek)
            statements.delete_deliveries(**lane._asdict(), message_ids=ids)
            made = [attempts[message_id] for message_id in ids]
            skipped = Settled(Source.of(source, region), ids, made, event="drop", outcome="drop", reason="skipped")
            moved = Moved(set(ids), [partial(observe, [skipped])])
        if ids:
            after = {"messages": len(ids), "messageIds": [str(message_id) for message_id in ids]}
            audit.carried_out(method=METHODS[settlement], row=source, after=after)
    moved.announce.insert(0, partial(_remove, lane, ids, seek=seek))
    moved.announce_all()
    return len(ids)


def _leases_spent(lane: Lane, ids: Sequence[int]) -> dict[int, int]:
    """Return the attempts by leases, which Redis alone counts; none if it is away."""
    try:
        return default_backlog().leases_spent(lane, ids)
    except redis.RedisError as error:
        outage_or_raise(error)
        return {}


def _remove(lane: Lane, ids: Sequence[int], *, seek: int) -> None:
    """Have Redis forget what has left the database, and both forget acknowledged messages that waited for that."""
    behind: list[int] = []
    if holds(lane.region):
        settled, _ = default_backlog().acknowledge(lane, [(message_id, WHICHEVER) for message_id in ids], generation="")
        behind = sorted(settled.difference(ids))
    if behind:
        with write_transaction():
            statements.delete_deliveries(**lane._asdict(), message_ids=behind, seek=seek)
    forget_ended(lane, [*ids, *behind])
