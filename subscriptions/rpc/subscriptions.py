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
from subscriptions.services.projects import project_ensure

Subscription = pubsub.Subscription.pb()


def name_complete(request: Any) -> None:
    """Give a subscription without a name a random one, in the project of its topic (pubsub.proto)."""
    if not request.name:
        project, _topic = names.parse_topic(request.topic, field="topic")
        request.name = names.subscription_name(project, f"auto-{secrets.token_hex(12)}")


def subscription_create(request: Any, caller: Principal) -> Any:
    row = services.subscription_create(name=request.name, subscription=to_dict(request), caller=caller)
    return to_message(subscription_resource(row), Subscription)


def subscription_get(request: Any, caller: Principal) -> Any:
    return to_message(subscription_resource(selectors.subscription_get(name=request.subscription)), Subscription)


def subscription_update(request: Any, caller: Principal) -> Any:
    values = update_request(request, "subscription", fields.SUBSCRIPTION)
    row = services.subscription_update(name=request.subscription.name, request=values, caller=caller)
    return to_message(subscription_resource_updated(row), Subscription)


def subscription_list(request: Any, caller: Principal) -> Any:
    owner = project_ensure(project=names.parse_project(request.project), caller=caller)
    rows, token = lists.subscriptions(owner, page_of(request))
    resources = [to_message(subscription_resource(row), Subscription) for row in rows]
    return pubsub.ListSubscriptionsResponse.pb()(subscriptions=resources, next_page_token=token)


def subscription_delete(request: Any, caller: Principal) -> Empty:
    services.subscription_delete(name=request.subscription)
    return Empty()


def push_config_modify(request: Any, caller: Principal) -> Empty:
    services.push_config_modify(name=request.subscription, request=to_dict(request), caller=caller)
    return Empty()


METHODS: dict[str, Method] = {
    "CreateSubscription": Unary(Subscription, Subscription, subscription_create, complete=name_complete),
    "GetSubscription": Unary(pubsub.GetSubscriptionRequest.pb(), Subscription, subscription_get),
    "UpdateSubscription": Unary(pubsub.UpdateSubscriptionRequest.pb(), Subscription, subscription_update),
    "ListSubscriptions": Unary(
        pubsub.ListSubscriptionsRequest.pb(), pubsub.ListSubscriptionsResponse.pb(), subscription_list
    ),
    "DeleteSubscription": Unary(pubsub.DeleteSubscriptionRequest.pb(), Empty, subscription_delete),
    "ModifyPushConfig": Unary(pubsub.ModifyPushConfigRequest.pb(), Empty, push_config_modify),
}
