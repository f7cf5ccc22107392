"""Topics over REST."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of, list_of_names
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.topics import topic_resource
from subscriptions.services.projects import ensure_project
from subscriptions.services.topics import create_topic, delete_topic, update_topic

PUBLISHER = "google.pubsub.v1.Publisher."


class TopicList(ApiView):
    """The topics of a project."""

    @serve(PUBLISHER + "ListTopics", "topics_list", gives=list_of("topics", fields.TOPIC), parameters=PAGING)
    def get(self, request: Request, project: str) -> Any:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.topics(owner, page)
        return listed("topics", [topic_resource(row) for row in rows], token)


class TopicDetail(ApiView):
    """One topic."""

    @serve(PUBLISHER + "CreateTopic", "topics_create", takes=fields.TOPIC, gives=fields.TOPIC)
    def put(self, request: Request, name: str) -> Any:
        row = create_topic(name=name, topic=request.data, caller=caller_of(request))
        return topic_resource(row)

    @serve(PUBLISHER + "GetTopic", "topics_get", gives=fields.TOPIC)
    def get(self, request: Request, name: str) -> Any:
        return topic_resource(selectors.get_topic(name=name))

    @serve(PUBLISHER + "UpdateTopic", "topics_patch", takes=fields.UPDATE_TOPIC, gives=fields.TOPIC)
    def patch(self, request: Request, name: str) -> Any:
        row = update_topic(name=name, request=request.data, caller=caller_of(request))
        return topic_resource(row)

    @serve(PUBLISHER + "DeleteTopic", "topics_delete")
    def delete(self, request: Request, name: str) -> None:
        delete_topic(name=name)


class TopicSubscriptionList(ApiView):
    """The names of the subscriptions attached to a topic. They may belong to other projects."""

    @serve(
        PUBLISHER + "ListTopicSubscriptions",
        "topics_subscriptions_list",
        gives=list_of_names("subscriptions"),
        parameters=PAGING,
    )
    def get(self, request: Request, name: str) -> Any:
        page = Page.read(request.query_params)
        row = selectors.get_topic(name=name)
        rows, token = lists.topic_subscriptions(row, page)
        return listed("subscriptions", [subscription.name for subscription in rows], token)


def listed(collection: str, items: list[object], token: str) -> dict[str, object]:
    """Return the response of a list, in which empty fields are left out."""
    answer: dict[str, object] = {}
    if items:
        answer[collection] = items
    if token:
        answer["nextPageToken"] = token
    return answer
