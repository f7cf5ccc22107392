"""Delete settled messages, and deliveries older than their subscription's retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import redis
from django.conf import settings
from django.db.models import Max

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import settings_of
from deliveries.backlog.records import Lane
from deliveries.models import ArchivedMessage
from deliveries.retention.retained import kept_from
from deliveries.rules.ids import first_id_at
from deliveries.store import lanerows, messagerows, statements
from deliveries.store.regionholds import holds
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.events import Settled, Source
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.outages import outage_or_raise
from subscriptions.selectors import PushSettings, push_settings_of

logger = logging.getLogger(__name__)

#: A younger message may belong to a publish that has not committed its deliveries yet.
SETTLED_GRACE_MS = 5_000
#: At this age nearly all messages are settled, unless their endpoint is slow or away.
RECENT_MS = 60_000
RANGE_SIZE = 2_000
#: A run ends after this number of ranges in which there was little to delete.
IDLE_RANGES = 4
MAX_RANGES = 200
#: The ids at which the last run stopped. If Redis loses them, the next run begins at the oldest message.
CURSOR_KEY = "ph:sweep"
RECENT_KEY = "ph:sweep-recent"


def sweep_settled() -> int:
    """Delete messages without deliveries and return their number.

    Each run looks at all messages that have become older than RECENT_MS since the last one: nearly all are settled. The
    others may be a large backlog, so a run passes few of them that are owed; the next one continues where it stopped.
    """
    client = default_backlog().shared
    now_ms, end_id = time.time_ns() // 1_000_000, archived_before()
    recent = _sweep(
        after_id=int(client.get(RECENT_KEY) or 0),
        before_id=min(first_id_at(now_ms - RECENT_MS), end_id),
        idle_ranges=MAX_RANGES,
    )
    whole = _sweep(
        after_id=int(client.get(CURSOR_KEY) or 0),
        before_id=min(first_id_at(now_ms - SETTLED_GRACE_MS), end_id),
        idle_ranges=IDLE_RANGES,
    )
    client.set(RECENT_KEY, recent.to_id)
    client.set(CURSOR_KEY, 0 if whole.is_at_end else whole.to_id)
    return recent.deleted + whole.deleted


class Swept(NamedTuple):
    """How many messages were deleted, the last one that was looked at, and whether none follow it."""

    deleted: int
    to_id: int
    is_at_end: bool


def _sweep(*, after_id: int, before_id: int, idle_ranges: int) -> Swept:
    deleted = idle = 0
    for _ in range(MAX_RANGES):
        to_id = messagerows.messages_range_end(after_id=after_id, before_id=before_id, size=RANGE_SIZE)
        if to_id is None:
            return Swept(deleted, after_id, is_at_end=True)
        with write_transaction():
            messagerows.lock_settled(to_delete=True)
            kept = kept_from(messagerows.topics_in_range(after_id=after_id, to_id=to_id))
            count = messagerows.delete_settled_messages(
                after_id=after_id, to_id=to_id, kept_from=kept, archived_only=settings.ARCHIVING
            )
        deleted += count
        after_id = to_id
        idle += count < RANGE_SIZE // 10
        if idle == idle_ranges:
            break
    return Swept(deleted, after_id, is_at_end=False)


def archived_before() -> int:
    """Return the id from which on nothing is archived, where the sweep stops. Without archiving, return the last id.

    Below this id the sweep checks each message: the clocks of hosts differ, so ids aren't committed in order.
    """
    if not settings.ARCHIVING:
        return statements.LAST_ID
    last_id = ArchivedMessage.objects.aggregate(last=Max("message_id"))["last"]
    return (last_id or 0) + 1


def sweep_expired(*, shard: int | None = None) -> int:
    """Delete deliveries past their retention, or those of a shard, and return their number.

    Redis forgets those that wait there. Workers and pullers drop the others.
    """
    now_ms = time.time_ns() // 1_000_000
    oldest_ids = {
        Lane(row.subscription_id, row.region): row.oldest_id
        for row in lanerows.all_lanes_waiting(shard=shard)
        if holds(row.region)
    }
    settings_by_id = settings_of({lane.subscription_id for lane in oldest_ids})
    deleted = 0
    for lane, oldest_id in oldest_ids.items():
        push_settings = settings_by_id.get(lane.subscription_id)
        while push_settings is not None and oldest_id < first_id_at(now_ms - push_settings.retention_seconds * 1000):
            with write_transaction():
                # Somebody may have prolonged the retention meanwhile.
                push_settings = push_settings_of(lane.subscription_id)
                if push_settings is None:
                    break
                before_id = first_id_at(now_ms - push_settings.retention_seconds * 1000)
                rows = messagerows.delete_expired_deliveries(
                    **lane._asdict(), before_id=before_id, limit=statements.DELETE_CHUNK
                )
            if rows:
                _report_expired(lane, push_settings, rows)
            deleted += len(rows)
            if len(rows) < statements.DELETE_CHUNK:
                break
    return deleted


def _report_expired(lane: Lane, push_settings: PushSettings, rows: Sequence[tuple[int, int]]) -> None:
    ids, attempts = [message_id for message_id, _ in rows], [count for _, count in rows]
    observe([Settled.as_expired(Source.of(push_settings, lane.region), ids, attempts)])
    try:
        default_backlog().remove(lane, ids, only_waiting=True)
    except redis.RedisError as error:
        logger.warning("Redis was not told of expired messages: %s", outage_or_raise(error))
