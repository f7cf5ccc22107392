"""Snapshots: what a subscription had not acknowledged at one moment, and everything published after it.

Ids are ordered by publishing and not by commit: a publish that is under way may still commit an older id. The boundary
therefore lies a little in the past, and messages after it that are already acknowledged are excluded one by one.
"""

from __future__ import annotations

import time
from datetime import timedelta

from deliveries.models import Delivery, Message, SnapshotMessage
from deliveries.rules.ids import first_id_at, publish_time_ms
from deliveries.store import lanerows, messagerows
from deliveries.store.fanout import first_pending_id
from deliveries.store.writelock import write_transaction
from pushhub.common import names
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition, ResourceExhausted
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


def create_snapshot(*, name: str, request: object, caller: Principal = OPERATOR) -> Snapshot:
    """Create a snapshot. `request` is a CreateSnapshotRequest."""
    project_id, snapshot_id = names.parse_snapshot(name)
    snapshot_fields = fields.CREATE_SNAPSHOT.read(request)
    check_name(snapshot_fields, name)
    names.parse_subscription(snapshot_fields.get("subscription", ""), field="subscription")
    labels = bounds.labels(snapshot_fields.get("labels", {}))
    with write_transaction():
        messagerows.lock_settled()
        project = ensure_project(project=project_id, caller=caller)
        source = selectors.get_subscription(name=snapshot_fields["subscription"], lock=True)
        sweep_snapshots(project=project, snapshot_id=snapshot_id)  # the name of one that has expired is free
        check_free(Snapshot.objects.filter(project=project, snapshot_id=snapshot_id), snapshot_id)
        _refuse_too_many(project.pk, source.topic_id)
        row = Snapshot(project=project, snapshot_id=snapshot_id, labels=labels, tags=snapshot_fields.get("tags", {}))
        _describe(row, source)
        insert(row, snapshot_id)
        _remember(row, source)
    return row


def _refuse_too_many(project_pk: int, topic_pk: int | None) -> None:
    """Apply the same limit to the project and to the topic, whose snapshots may be in other projects."""
    for what, rows in (
        ("project", Snapshot.objects.filter(project_id=project_pk)),
        ("topic", Snapshot.objects.filter(topic_pk=topic_pk or 0)),
    ):
        if rows.filter(expire_at__gt=utcnow()).count() >= MAX_SNAPSHOTS:
            raise ResourceExhausted(f"The {what} has {MAX_SNAPSHOTS} snapshots, and may not have more.")


def _describe(row: Snapshot, source: Subscription) -> None:
    """Set topic, boundary and expiration: 7 days less the age of the oldest unacknowledged message."""
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
    row.boundary_id = _boundary(row.topic_pk)


def _boundary(topic_pk: int) -> int:
    """Return an id below those of all messages that are still to be committed to the topic.

    The clock of whoever publishes to it may be behind that of this process, so its last message counts, too.
    """
    now_ms = time.time_ns() // 1_000_000 - messagerows.oldest_write_ms()
    last_ms = publish_time_ms(messagerows.last_id_of_topic(topic_pk))
    return min(first_id_at(min(now_ms, last_ms) - COMMITTING_MS), first_pending_id())


def _remember(row: Snapshot, source: Subscription) -> None:
    """Store the exceptions to the boundary: messages before it that are not acknowledged, and after it that are."""
    messagerows.include_snapshot(snapshot_id=row.pk, subscription_id=source.pk, before_id=row.boundary_id)
    since = Message.objects.filter(topic_id=row.topic_pk, pk__gte=row.boundary_id)
    owed = Delivery.objects.filter(subscription=source, message_id__gte=row.boundary_id).values("message_id")
    SnapshotMessage.objects.bulk_create(
        SnapshotMessage(snapshot=row, message_id=pk, region=region, included=False)
        for pk, region in since.exclude(pk__in=owed).values_list("pk", "region")
    )
