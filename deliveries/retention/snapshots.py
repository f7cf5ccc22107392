"""Snapshots: what a subscription had not acknowledged at one moment, and everything published after it.

Ids are ordered by publishing and not by commit: a publish that is under way may still commit an older id. The boundary
therefore lies a little in the past, and messages after it that are already acknowledged are excluded one by one.

What waits before the boundary is included in ranges, a transaction each, so that other writers never wait long. The
last one stores the snapshot, and excludes what is acknowledged at that moment. Nothing joins the earlier ranges
meanwhile, except by a seek, which takes effect in ranges, too. What leaves them after it was included stays in the
snapshot: it promises to hold what is not acknowledged when it is complete, and may hold more. The rows of a snapshot
that was never completed, or that was deleted, are swept.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from deliveries.models import Delivery, Message, SnapshotMessage
from deliveries.rules.ids import TIME_SHIFT, first_id_at, publish_time_ms
from deliveries.store import lanerows, messagerows
from deliveries.store.fanout import first_pending_id
from deliveries.store.writelock import write_transaction
from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import Aborted, FailedPrecondition, ResourceExhausted
from pushhub.common.principals import OPERATOR, Principal
from subscriptions import selectors
from subscriptions.models import Snapshot, Subscription
from subscriptions.resources import bounds, fields
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_free, check_name, insert
from subscriptions.services.snapshots import sweep_snapshots

LIFETIME = timedelta(days=7)
SHORTEST_LIFETIME = timedelta(hours=1)
MAX_SNAPSHOTS = 5000
#: A publish takes far less than this from drawing its ids to its commit, unless its transaction is long: _boundary.
COMMITTING_MS = 5_000
#: Messages that one transaction includes, or deletes.
RANGE_SIZE = 10_000
#: A snapshot is given up after this time. Its rows are swept much later, as the clocks of hosts differ.
LONGEST_MS, ABANDONED_MS = 600_000, 3_600_000


def create_snapshot(*, name: str, request: object, caller: Principal = OPERATOR) -> Snapshot:
    """Create a snapshot. `request` is a CreateSnapshotRequest."""
    project_id, snapshot_id = names.parse_snapshot(name)
    snapshot_fields = fields.CREATE_SNAPSHOT.read(request)
    check_name(snapshot_fields, name)
    names.parse_subscription(snapshot_fields.get("subscription", ""), field="subscription")
    labels = bounds.labels(snapshot_fields.get("labels", {}))
    row = Snapshot(pk=_draw_pk(), snapshot_id=snapshot_id, labels=labels, tags=snapshot_fields.get("tags", {}))
    first_source, boundary_id = None, 0
    after: tuple[str, int] | None = messagerows.BEFORE_ALL
    while after is not None:
        with write_transaction():
            messagerows.lock_settled()
            row.project = ensure_project(project=project_id, caller=caller)
            source = selectors.get_subscription(name=snapshot_fields["subscription"], lock=True)
            sweep_snapshots(project=row.project, snapshot_id=snapshot_id)  # the name of one that has expired is free
            check_free(Snapshot.objects.filter(project=row.project, snapshot_id=snapshot_id), snapshot_id)
            _refuse_too_many(row.project.pk, source.topic_id)
            _describe(row, source)
            first_source, boundary_id = first_source or source, boundary_id or _boundary(row.topic_pk)
            if source != first_source or publish_time_ms(row.pk) < _now_ms() - LONGEST_MS:
                raise Aborted(f"The snapshot took too long, or the subscription was created anew (resource={name}).")
            row.boundary_id = boundary_id
            after = messagerows.include_snapshot(
                snapshot_id=row.pk, subscription_id=source.pk, before_id=boundary_id, after=after, limit=RANGE_SIZE
            )
            if after is None:
                insert(row, snapshot_id)
                _exclude_settled(row, source)
    return row


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _draw_pk() -> int:
    """Return a key that tells when the snapshot was begun, as the id of a message does."""
    return first_id_at(_now_ms()) + secrets.randbelow(1 << TIME_SHIFT)


def sweep_rows() -> int:
    """Delete the rows of snapshots that are gone, or that were begun long ago and not completed. Return how many."""
    deleted = 0
    for snapshot_id in messagerows.snapshots_gone(before_id=first_id_at(_now_ms() - ABANDONED_MS)):
        count = RANGE_SIZE
        while count == RANGE_SIZE:
            with write_transaction():
                count = messagerows.delete_snapshot_rows(snapshot_id=snapshot_id, limit=RANGE_SIZE)
            deleted += count
    return deleted


def _refuse_too_many(project_pk: int, topic_pk: int | None) -> None:
    """Apply the same limit to the project and to the topic, whose snapshots may be in other projects."""
    for what, rows in (
        ("project", Snapshot.objects.filter(project_id=project_pk)),
        ("topic", Snapshot.objects.filter(topic_pk=topic_pk or 0)),
    ):
        if rows.filter(expire_at__gt=utcnow()).count() >= MAX_SNAPSHOTS:
            raise ResourceExhausted(f"The {what} has {MAX_SNAPSHOTS} snapshots, and may not have more.")


def _describe(row: Snapshot, source: Subscription) -> None:
    """Set topic and expiration: 7 days less the age of the oldest unacknowledged message."""
    if source.detached:
        raise FailedPrecondition(f"Subscription is detached (resource={source.subscription_id}).")
    if source.topic is None:
        raise FailedPrecondition(f"The topic of the subscription is deleted (resource={source.subscription_id}).")
    now = utcnow()
    oldest = Delivery.objects.filter(subscription=source).order_by("message_id").values_list("message_id", flat=True)
    oldest_id = min(
        (oldest.filter(region=region).first() or 0 for region in lanerows.lanes_waiting(source.pk)), default=0
    )
    age = timedelta(milliseconds=now.timestamp() * 1000 - publish_time_ms(oldest_id)) if oldest_id else timedelta()
    if LIFETIME - age < SHORTEST_LIFETIME:
        raise FailedPrecondition(
            "The snapshot would expire in less than an hour, as the subscription's oldest unacknowledged message is "
            f"{age.days} days old (resource={source.subscription_id})."
        )
    row.topic = source.topic
    row.topic_pk = source.topic.pk
    row.expire_at = now + LIFETIME - max(age, timedelta())


def _boundary(topic_pk: int) -> int:
    """Return an id below those of all messages that are still to be committed to the topic.

    The clock of whoever publishes to it may be behind that of this process, so its last message counts, too.
    """
    now_ms = _now_ms() - messagerows.oldest_write_ms()
    last_ms = publish_time_ms(messagerows.last_id_of_topic(topic_pk))
    return min(first_id_at(min(now_ms, last_ms) - COMMITTING_MS), first_pending_id())


def _exclude_settled(row: Snapshot, source: Subscription) -> None:
    """Exclude the messages after the boundary that are acknowledged."""
    since = Message.objects.filter(topic_id=row.topic_pk, pk__gte=row.boundary_id)
    owed = Delivery.objects.filter(subscription=source, message_id__gte=row.boundary_id).values("message_id")
    SnapshotMessage.objects.bulk_create(
        SnapshotMessage(snapshot=row, message_id=pk, region=region, included=False)
        for pk, region in since.exclude(pk__in=owed).values_list("pk", "region")
    )
