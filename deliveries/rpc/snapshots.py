"""Snapshots and seek over gRPC."""

from __future__ import annotations

import secrets
from typing import Any

from google.protobuf.empty_pb2 import Empty

from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot
from pushhub.common import names
from pushhub.common.principals import Principal
from pushhub.common.pubsubtypes import pubsub
from subscriptions import lists, selectors
from subscriptions.resources import fields
from subscriptions.resources.render import snapshot_resource
from subscriptions.rpc.calls import Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message, update_request
from subscriptions.rpc.topics import page_of
from subscriptions.services import snapshots
from subscriptions.services.projects import ensure_project

Snapshot = pubsub.Snapshot.pb()
SeekResponse = pubsub.SeekResponse.pb()


def name_complete(request: Any) -> None:
    """Over gRPC a snapshot without a name gets a random one, in the project of its subscription (pubsub.proto)."""
    if not request.name:
        project, _subscription = names.parse_subscription(request.subscription, field="subscription")
        request.name = names.snapshot_name(project, f"auto-{secrets.token_hex(12)}")


def create(request: Any, caller: Principal) -> Any:
    row = create_snapshot(name=request.name, request=to_dict(request), caller=caller)
    return to_message(snapshot_resource(row), Snapshot)


def get(request: Any, caller: Principal) -> Any:
    return to_message(snapshot_resource(selectors.get_snapshot(name=request.snapshot)), Snapshot)


def update(request: Any, caller: Principal) -> Any:
    change = update_request(request, "snapshot", fields.SNAPSHOT)
    row = snapshots.update_snapshot(name=request.snapshot.name, request=change)
    return to_message(snapshot_resource(row), Snapshot)


def delete(request: Any, caller: Principal) -> Empty:
    snapshots.delete_snapshot(name=request.snapshot)
    return Empty()


def list_of_project(request: Any, caller: Principal) -> Any:
    owner = ensure_project(project=names.parse_project(request.project), caller=caller)
    rows, token = lists.snapshots(owner, page_of(request))
    listed = [to_message(snapshot_resource(row), Snapshot) for row in rows]
    return pubsub.ListSnapshotsResponse.pb()(snapshots=listed, next_page_token=token)


def list_of_topic(request: Any, caller: Principal) -> Any:
    topic = selectors.get_topic(name=request.topic)
    rows, token = lists.topic_snapshots(topic, page_of(request))
    return pubsub.ListTopicSnapshotsResponse.pb()(snapshots=[snapshot.name for snapshot in rows], next_page_token=token)


def seek(request: Any, caller: Principal) -> Any:
    seek_subscription(name=request.subscription, request=to_dict(request))
    return SeekResponse()


PUBLISHER: dict[str, Method] = {
    "ListTopicSnapshots": Unary(
        pubsub.ListTopicSnapshotsRequest.pb(), pubsub.ListTopicSnapshotsResponse.pb(), list_of_topic
    )
}
SUBSCRIBER: dict[str, Method] = {
    "CreateSnapshot": Unary(pubsub.CreateSnapshotRequest.pb(), Snapshot, create, complete=name_complete),
    "GetSnapshot": Unary(pubsub.GetSnapshotRequest.pb(), Snapshot, get),
    "UpdateSnapshot": Unary(pubsub.UpdateSnapshotRequest.pb(), Snapshot, update),
    "DeleteSnapshot": Unary(pubsub.DeleteSnapshotRequest.pb(), Empty, delete),
    "ListSnapshots": Unary(pubsub.ListSnapshotsRequest.pb(), pubsub.ListSnapshotsResponse.pb(), list_of_project),
    "Seek": Unary(pubsub.SeekRequest.pb(), SeekResponse, seek),
}
