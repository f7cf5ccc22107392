"""Snapshots and seek over REST."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot
from pushhub.common.names import snapshot_name, subscription_name, topic_name
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, list_of_names, message
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.render import snapshot_resource
from subscriptions.services import snapshots
from subscriptions.services.projects import ensure_project

TAGS = ["snapshots"]


class SnapshotList(ApiView):
    """The snapshots of a project."""

    methods = {"GET": "google.pubsub.v1.Subscriber.ListSnapshots"}

    @extend_schema(
        operation_id="snapshots_list", tags=TAGS, parameters=PAGING, responses=list_of("snapshots", fields.SNAPSHOT)
    )
    def get(self, request: Request, project: str) -> Response:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.snapshots(owner, page)
        return Response(listed("snapshots", [snapshot_resource(row) for row in rows], token))


class SnapshotDetail(ApiView):
    """One snapshot."""

    methods = {
        "PUT": "google.pubsub.v1.Subscriber.CreateSnapshot",
        "GET": "google.pubsub.v1.Subscriber.GetSnapshot",
        "PATCH": "google.pubsub.v1.Subscriber.UpdateSnapshot",
        "DELETE": "google.pubsub.v1.Subscriber.DeleteSnapshot",
    }

    @extend_schema(
        operation_id="snapshots_create",
        tags=TAGS,
        request=body(fields.CREATE_SNAPSHOT),
        responses=message(fields.SNAPSHOT),
    )
    def put(self, request: Request, project: str, snapshot: str) -> Response:
        name = snapshot_name(project, snapshot)
        return Response(snapshot_resource(create_snapshot(name=name, request=request.data, caller=caller_of(request))))

    @extend_schema(operation_id="snapshots_get", tags=TAGS, responses=message(fields.SNAPSHOT))
    def get(self, request: Request, project: str, snapshot: str) -> Response:
        return Response(snapshot_resource(selectors.get_snapshot(name=snapshot_name(project, snapshot))))

    @extend_schema(
        operation_id="snapshots_patch",
        tags=TAGS,
        request=body(fields.UPDATE_SNAPSHOT),
        responses=message(fields.SNAPSHOT),
    )
    def patch(self, request: Request, project: str, snapshot: str) -> Response:
        row = snapshots.update_snapshot(name=snapshot_name(project, snapshot), request=request.data)
        return Response(snapshot_resource(row))

    @extend_schema(operation_id="snapshots_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str, snapshot: str) -> Response:
        snapshots.delete_snapshot(name=snapshot_name(project, snapshot))
        return Response({})


class TopicSnapshotList(ApiView):
    """The names of a topic's snapshots."""

    methods = {"GET": "google.pubsub.v1.Publisher.ListTopicSnapshots"}

    @extend_schema(
        operation_id="topics_snapshots_list", tags=TAGS, parameters=PAGING, responses=list_of_names("snapshots")
    )
    def get(self, request: Request, project: str, topic: str) -> Response:
        page = Page.read(request.query_params)
        topic_row = selectors.get_topic(name=topic_name(project, topic))
        rows, token = lists.topic_snapshots(topic_row, page)
        return Response(listed("snapshots", [row.name for row in rows], token))


class SubscriptionSeek(ApiView):
    """`POST ...:seek`."""

    methods = {"POST": "google.pubsub.v1.Subscriber.Seek"}

    @extend_schema(
        operation_id="subscriptions_seek", tags=["subscriptions"], request=body(fields.SEEK), responses=EMPTY
    )
    def post(self, request: Request, project: str, subscription: str) -> Response:
        seek_subscription(name=subscription_name(project, subscription), request=request.data)
        return Response({})
