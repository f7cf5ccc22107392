"""Snapshots and seek over gRPC."""

from __future__ import annotations

import secrets
from typing import Any

from deliveries.api import snapshot_views
from pushhub.common import names
from pushhub.common.pubsubtypes import pubsub
from subscriptions.resources import fields
from subscriptions.rpc.calls import Method
from subscriptions.rpc.unary import answered_by, update

Snapshot = pubsub.Snapshot


def complete_name(request: Any) -> None:
    """Over gRPC a snapshot without a name gets a random one, in the project of its subscription (pubsub.proto)."""
    if not request.name:
        project, _subscription = names.parse_subscription(request.subscription, field="subscription")
        request.name = names.snapshot_name(project, f"auto-{secrets.token_hex(12)}")


PUBLISHER: dict[str, Method] = dict([answered_by(snapshot_views.list_topic_snapshots)])
SUBSCRIBER: dict[str, Method] = dict(
    [
        answered_by(snapshot_views.create_snapshot, answer=Snapshot, complete=complete_name),
        answered_by(snapshot_views.get_snapshot, answer=Snapshot),
        answered_by(snapshot_views.update_snapshot, answer=Snapshot, body=update("snapshot", fields.SNAPSHOT)),
        answered_by(snapshot_views.delete_snapshot),
        answered_by(snapshot_views.list_snapshots),
        answered_by(snapshot_views.seek),
    ]
)
