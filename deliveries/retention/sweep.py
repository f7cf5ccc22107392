"""Delete settled messages, and deliveries older than their subscription's retention."""

from __future__ import annotations

import time

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
RANGE_SIZE = 2_000
#: A run ends after this number of ranges in which there was little to delete.
IDLE_RANGES = 4
MAX_RANGES = 200
#: The id at which the last run stopped. If Redis loses it, the next run begins at the oldest message.
CURSOR_KEY = "ph:sweep"


def sweep_settled() -> int:
    """Delete messages without deliveries and return their number. Each run continues where the last one stopped."""
    client = default_backlog().shared
    before_id = min(first_id_at(time.time_ns() // 1_000_000 - SETTLED_GRACE_MS), archived_before())
    after_id = int(client.get(CURSOR_KEY) or 0)
    deleted = idle = 0
    for _ in range(MAX_RANGES):
        to_id = messagerows.messages_range_end(after_id=after_id, before_id=before_id, size=RANGE_SIZE)
        if to_id is None:
            after_id = 0
            break
        with write_transaction():
            kept = kept_from(messagerows.topics_in_range(after_id=after_id, to_id=to_id))
            count = messagerows.delete_settled_messages(
                after_id=after_id, to_id=to_id, kept_from=kept, archived_only=settings.ARCHIVING
            )
        deleted += count
        after_id = to_id
        idle += count < RANGE_SIZE // 10
        if idle == IDLE_RANGES:
            break
    client.set(CURSOR_KEY, after_id)
    return deleted


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
