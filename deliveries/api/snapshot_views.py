"""Snapshots and seek over REST."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of, list_of_names
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.render import snapshot_resource
from subscriptions.services import snapshots
from subscriptions.services.projects import ensure_project

SUBSCRIBER = "google.pubsub.v1.Subscriber."


class SnapshotList(ApiView):
    """The snapshots of a project."""

    @serve(
        SUBSCRIBER + "ListSnapshots", "snapshots_list", gives=list_of("snapshots", fields.SNAPSHOT), parameters=PAGING
    )
    def get(self, request: Request, project: str) -> Any:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.snapshots(owner, page)
        return listed("snapshots", [snapshot_resource(row) for row in rows], token)


class SnapshotDetail(ApiView):
    """One snapshot."""

    @serve(SUBSCRIBER + "CreateSnapshot", "snapshots_create", takes=fields.CREATE_SNAPSHOT, gives=fields.SNAPSHOT)
    def put(self, request: Request, name: str) -> Any:
        return snapshot_resource(create_snapshot(name=name, request=request.data, caller=caller_of(request)))

    @serve(SUBSCRIBER + "GetSnapshot", "snapshots_get", gives=fields.SNAPSHOT)
    def get(self, request: Request, name: str) -> Any:
        return snapshot_resource(selectors.get_snapshot(name=name))

    @serve(SUBSCRIBER + "UpdateSnapshot", "snapshots_patch", takes=fields.UPDATE_SNAPSHOT, gives=fields.SNAPSHOT)
    def patch(self, request: Request, name: str) -> Any:
        row = snapshots.update_snapshot(name=name, request=request.data)
        return snapshot_resource(row)

    @serve(SUBSCRIBER + "DeleteSnapshot", "snapshots_delete")
    def delete(self, request: Request, name: str) -> None:
        snapshots.delete_snapshot(name=name)


class TopicSnapshotList(ApiView):
    """The names of a topic's snapshots."""

    @serve(
        "google.pubsub.v1.Publisher.ListTopicSnapshots",
        "topics_snapshots_list",
        gives=list_of_names("snapshots"),
        parameters=PAGING,
        tag="snapshots",
    )
    def get(self, request: Request, name: str) -> Any:
        page = Page.read(request.query_params)
        topic_row = selectors.get_topic(name=name)
        rows, token = lists.topic_snapshots(topic_row, page)
        return listed("snapshots", [row.name for row in rows], token)


class SubscriptionSeek(ApiView):
    """`POST ...:seek`."""

    @serve(SUBSCRIBER + "Seek", "subscriptions_seek", takes=fields.SEEK)
    def post(self, request: Request, name: str) -> None:
        seek_subscription(name=name, request=request.data)
