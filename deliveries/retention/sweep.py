"""Delete settled messages, and deliveries older than their subscription's retention."""

from __future__ import annotations

import time
from typing import NamedTuple

from django.conf import settings
from django.db.models import Max

from deliveries.backlog import reconcile
from deliveries.backlog.default import default_backlog
from deliveries.models import ArchivedMessage
from deliveries.retention.retained import kept_from
from deliveries.rules.ids import first_id_at
from deliveries.store import lanerows, messagerows, statements
from deliveries.store.writelock import write_transaction
from subscriptions.selectors import push_settings_of

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

    Workers drop those that Redis still holds.
    """
    now_ms = time.time_ns() // 1_000_000
    oldest_ids: dict[int, int] = {}
    for lane in lanerows.all_lanes_waiting(shard=shard):
        oldest_ids[lane.subscription_id] = min(lane.oldest_id, oldest_ids.get(lane.subscription_id, lane.oldest_id))
    deleted = 0
    for subscription_id, push_settings in reconcile.settings_of(oldest_ids).items():
        while oldest_ids[subscription_id] < first_id_at(now_ms - push_settings.retention_seconds * 1000):
            with write_transaction():
                # Somebody may have prolonged the retention meanwhile.
                current = push_settings_of(subscription_id)
                if current is None:
                    break
                before_id = first_id_at(now_ms - current.retention_seconds * 1000)
                count = messagerows.delete_expired_deliveries(
                    subscription_id=subscription_id, before_id=before_id, limit=statements.DELETE_CHUNK
                )
            deleted += count
            if count < statements.DELETE_CHUNK:
                break
    return deleted
