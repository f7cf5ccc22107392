"""google.pubsub.v1.Subscriber, without messages and snapshots."""

from __future__ import annotations

import secrets
from typing import Any

from google.protobuf.empty_pb2 import Empty

from pushhub.common import names
from pushhub.common.principals import Principal
from pushhub.common.pubsubtypes import pubsub
from subscriptions import lists, selectors
from subscriptions.resources import fields
from subscriptions.resources.subscriptions import subscription_resource, subscription_resource_updated
from subscriptions.rpc.calls import Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message, update_request
from subscriptions.rpc.topics import page_of
from subscriptions.services import subscriptions as services
from subscriptions.services.projects import ensure_project

Subscription = pubsub.Subscription.pb()


def name_complete(request: Any) -> None:
    """Give a subscription without a name a random one, in the project of its topic (pubsub.proto)."""
    if not request.name:
        project, _topic = names.parse_topic(request.topic, field="topic")
        request.name = names.subscription_name(project, f"auto-{secrets.token_hex(12)}")


def create_subscription(request: Any, caller: Principal) -> Any:
    row = services.create_subscription(name=request.name, subscription=to_dict(request), caller=caller)
    return to_message(subscription_resource(row), Subscription)


def get_subscription(request: Any, caller: Principal) -> Any:
    return to_message(subscription_resource(selectors.get_subscription(name=request.subscription)), Subscription)


def update_subscription(request: Any, caller: Principal) -> Any:
    values = update_request(request, "subscription", fields.SUBSCRIPTION)
    row = services.update_subscription(name=request.subscription.name, request=values, caller=caller)
    return to_message(subscription_resource_updated(row), Subscription)


def list_subscriptions(request: Any, caller: Principal) -> Any:
    owner = ensure_project(project=names.parse_project(request.project), caller=caller)
    rows, token = lists.subscriptions(owner, page_of(request))
    resources = [to_message(subscription_resource(row), Subscription) for row in rows]
    return pubsub.ListSubscriptionsResponse.pb()(subscriptions=resources, next_page_token=token)


def delete_subscription(request: Any, caller: Principal) -> Empty:
    services.delete_subscription(name=request.subscription)
    return Empty()


def modify_push_config(request: Any, caller: Principal) -> Empty:
    services.modify_push_config(name=request.subscription, request=to_dict(request), caller=caller)
    return Empty()


METHODS: dict[str, Method] = {
    "CreateSubscription": Unary(Subscription, Subscription, create_subscription, complete=name_complete),
    "GetSubscription": Unary(pubsub.GetSubscriptionRequest.pb(), Subscription, get_subscription),
    "UpdateSubscription": Unary(pubsub.UpdateSubscriptionRequest.pb(), Subscription, update_subscription),
    "ListSubscriptions": Unary(
        pubsub.ListSubscriptionsRequest.pb(), pubsub.ListSubscriptionsResponse.pb(), list_subscriptions
    ),
    "DeleteSubscription": Unary(pubsub.DeleteSubscriptionRequest.pb(), Empty, delete_subscription),
    "ModifyPushConfig": Unary(pubsub.ModifyPushConfigRequest.pb(), Empty, modify_push_config),
}
