"""google.pubsub.v1.Publisher, without Publish."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty

from pushhub.common import names
from pushhub.common.principals import Principal
from pushhub.common.pubsubtypes import pubsub
from subscriptions import lists, selectors
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.topics import topic_resource
from subscriptions.rpc.calls import Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message, update_request
from subscriptions.services import subscriptions as subscription_services
from subscriptions.services import topics as services
from subscriptions.services.projects import ensure_project

Topic = pubsub.Topic.pb()


def page_of(request: Any) -> Page:
    return Page.read({"pageSize": str(request.page_size), "pageToken": request.page_token})


def create_topic(request: Any, caller: Principal) -> Any:
    row = services.create_topic(name=request.name, topic=to_dict(request), caller=caller)
    return to_message(topic_resource(row), Topic)


def update_topic(request: Any, caller: Principal) -> Any:
    row = services.update_topic(
        name=request.topic.name, request=update_request(request, "topic", fields.TOPIC), caller=caller
    )
    return to_message(topic_resource(row), Topic)


def get_topic(request: Any, caller: Principal) -> Any:
    return to_message(topic_resource(selectors.get_topic(name=request.topic)), Topic)


def list_topics(request: Any, caller: Principal) -> Any:
    owner = ensure_project(project=names.parse_project(request.project), caller=caller)
    rows, token = lists.topics(owner, page_of(request))
    topics = [to_message(topic_resource(row), Topic) for row in rows]
    return pubsub.ListTopicsResponse.pb()(topics=topics, next_page_token=token)


def delete_topic(request: Any, caller: Principal) -> Empty:
    services.delete_topic(name=request.topic)
    return Empty()


def topic_subscriptions(request: Any, caller: Principal) -> Any:
    row = selectors.get_topic(name=request.topic)
    rows, token = lists.topic_subscriptions(row, page_of(request))
    attached = [subscription.name for subscription in rows]
    return pubsub.ListTopicSubscriptionsResponse.pb()(subscriptions=attached, next_page_token=token)


def detach_subscription(request: Any, caller: Principal) -> Any:
    subscription_services.detach_subscription(name=request.subscription)
    return pubsub.DetachSubscriptionResponse.pb()()


METHODS: dict[str, Method] = {
    "CreateTopic": Unary(Topic, Topic, create_topic),
    "UpdateTopic": Unary(pubsub.UpdateTopicRequest.pb(), Topic, update_topic),
    "GetTopic": Unary(pubsub.GetTopicRequest.pb(), Topic, get_topic),
    "ListTopics": Unary(pubsub.ListTopicsRequest.pb(), pubsub.ListTopicsResponse.pb(), list_topics),
    "DeleteTopic": Unary(pubsub.DeleteTopicRequest.pb(), Empty, delete_topic),
    "ListTopicSubscriptions": Unary(
        pubsub.ListTopicSubscriptionsRequest.pb(), pubsub.ListTopicSubscriptionsResponse.pb(), topic_subscriptions
    ),
    "DetachSubscription": Unary(
        pubsub.DetachSubscriptionRequest.pb(), pubsub.DetachSubscriptionResponse.pb(), detach_subscription
    ),
}
