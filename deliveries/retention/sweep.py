"""What time lets go: settled messages, and deliveries past their subscription's retention."""

from __future__ import annotations

import time

from django.conf import settings
from django.db.models import Max

from deliveries.backlog import reconcile
from deliveries.backlog.default import default_backlog
from deliveries.models import ArchivedMessage
from deliveries.retention.retained import kept_from
from deliveries.rules.ids import first_id_at
from deliveries.store import statements
from deliveries.store.writelock import write_transaction

#: A younger message may belong to a publish that has not committed its deliveries yet.
SETTLED_GRACE_MS = 5_000
RANGE_SIZE = 2_000
#: A run goes on while ranges are worth it, and looks at no more than a few that are not.
IDLE_RANGES = 4
MAX_RANGES = 200
#: Where the last run stopped; lost with Redis, it begins again at the oldest message.
CURSOR_KEY = "ph:sweep"


def settled_sweep() -> int:
    """Delete messages that are owed to nobody; returns how many. Each run goes on where the last one stopped."""
    client = default_backlog().client
    before_id = min(first_id_at(time.time_ns() // 1_000_000 - SETTLED_GRACE_MS), archived_before())
    after_id = int(client.get(CURSOR_KEY) or 0)
    deleted = idle = 0
    for _ in range(MAX_RANGES):
        to_id = statements.messages_range_end(after_id=after_id, before_id=before_id, size=RANGE_SIZE)
        if to_id is None:
            after_id = 0
            break
        kept = kept_from(statements.topics_in_range(after_id=after_id, to_id=to_id))
        with write_transaction():
            count = statements.messages_delete_settled(
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
    """Where archiving is on, nothing from this id on is in the archive, so that the sweep need not look there.

    Below it each message is asked for by its id: hosts' clocks differ, so ids are not committed in their order.
    """
    if not settings.ARCHIVING:
        return statements.LAST_ID
    last_id = ArchivedMessage.objects.aggregate(last=Max("message_id"))["last"]
    return (last_id or 0) + 1


def expired_sweep() -> int:
    """Delete deliveries past their retention; the workers drop those that Redis still holds. Returns how many."""
    now_ms = time.time_ns() // 1_000_000
    deleted = 0
    for subscription_id, found in reconcile.settings_waiting():
        before_id = first_id_at(now_ms - found.retention_seconds * 1000)
        while True:
            with write_transaction():
                count = statements.deliveries_delete_expired(
                    subscription_id=subscription_id, before_id=before_id, limit=statements.DELETE_CHUNK
                )
            deleted += count
            if count < statements.DELETE_CHUNK:
                break
    return deleted
