"""Topics over REST."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, list_of_names, message
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.topics import topic_resource
from subscriptions.services.projects import ensure_project
from subscriptions.services.topics import create_topic, delete_topic, update_topic

TAGS = ["topics"]


class TopicList(ApiView):
    """The topics of a project."""

    methods = {"GET": "google.pubsub.v1.Publisher.ListTopics"}

    @extend_schema(operation_id="topics_list", tags=TAGS, parameters=PAGING, responses=list_of("topics", fields.TOPIC))
    def get(self, request: Request, project: str) -> Response:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.topics(owner, page)
        return Response(listed("topics", [topic_resource(row) for row in rows], token))


class TopicDetail(ApiView):
    """One topic."""

    methods = {
        "PUT": "google.pubsub.v1.Publisher.CreateTopic",
        "GET": "google.pubsub.v1.Publisher.GetTopic",
        "PATCH": "google.pubsub.v1.Publisher.UpdateTopic",
        "DELETE": "google.pubsub.v1.Publisher.DeleteTopic",
    }

    @extend_schema(operation_id="topics_create", tags=TAGS, request=body(fields.TOPIC), responses=message(fields.TOPIC))
    def put(self, request: Request, project: str, topic: str) -> Response:
        row = create_topic(name=names.topic_name(project, topic), topic=request.data, caller=caller_of(request))
        return Response(topic_resource(row))

    @extend_schema(operation_id="topics_get", tags=TAGS, responses=message(fields.TOPIC))
    def get(self, request: Request, project: str, topic: str) -> Response:
        return Response(topic_resource(selectors.get_topic(name=names.topic_name(project, topic))))

    @extend_schema(
        operation_id="topics_patch", tags=TAGS, request=body(fields.UPDATE_TOPIC), responses=message(fields.TOPIC)
    )
    def patch(self, request: Request, project: str, topic: str) -> Response:
        row = update_topic(name=names.topic_name(project, topic), request=request.data, caller=caller_of(request))
        return Response(topic_resource(row))

    @extend_schema(operation_id="topics_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str, topic: str) -> Response:
        delete_topic(name=names.topic_name(project, topic))
        return Response({})


class TopicSubscriptionList(ApiView):
    """The names of the subscriptions attached to a topic. They may belong to other projects."""

    methods = {"GET": "google.pubsub.v1.Publisher.ListTopicSubscriptions"}

    @extend_schema(
        operation_id="topics_subscriptions_list", tags=TAGS, parameters=PAGING, responses=list_of_names("subscriptions")
    )
    def get(self, request: Request, project: str, topic: str) -> Response:
        page = Page.read(request.query_params)
        row = selectors.get_topic(name=names.topic_name(project, topic))
        rows, token = lists.topic_subscriptions(row, page)
        return Response(listed("subscriptions", [subscription.name for subscription in rows], token))


def listed(collection: str, items: list[object], token: str) -> dict[str, object]:
    """Return the response of a list, in which empty fields are left out."""
    answer: dict[str, object] = {}
    if items:
        answer[collection] = items
    if token:
        answer["nextPageToken"] = token
    return answer
