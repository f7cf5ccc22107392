"""Snapshots as resources: labels and expiration. Their messages are in deliveries/retention/snapshots.py."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from pushhub.common import names
from pushhub.common.clock import utcnow
from subscriptions import selectors
from subscriptions.models import Snapshot
from subscriptions.resources import bounds, fields, masks
from subscriptions.resources.render import snapshot_resource
from subscriptions.services.rows import update_request

SNAPSHOT_MUTABLE = frozenset({"labels"})


def update_snapshot(*, name: str, request: object) -> Snapshot:
    """Update the labels of a snapshot. `request` is an UpdateSnapshotRequest; nothing else can change."""
    names.parse_snapshot(name)
    values, paths = update_request(request, name, fields.UPDATE_SNAPSHOT, "snapshot", SNAPSHOT_MUTABLE)
    with transaction.atomic():
        row = selectors.get_snapshot(name=name, lock=True)
        merged = masks.masked(snapshot_resource(row), values, paths, fields.SNAPSHOT)
        row.labels = bounds.labels(merged.get("labels", {}))
        row.save()
    return row


def delete_snapshot(*, name: str) -> None:
    """Delete a snapshot. The next sweep removes the messages that only it kept."""
    with transaction.atomic():
        selectors.get_snapshot(name=name, lock=True).delete()


def sweep_snapshots(**which: Any) -> int:
    """Delete the snapshots that have expired, of those that a filter names. Returns how many."""
    expired = list(Snapshot.objects.filter(expire_at__lte=utcnow(), **which).select_related("project"))
    for row in expired:
        row.delete()
    return len(expired)
