"""Subscriptions."""

from __future__ import annotations

from typing import Any

from pushhub.common import names
from pushhub.common.principals import Principal
from subscriptions import selectors
from subscriptions.api.openapi import list_of
from subscriptions.api.routes import PROJECT, SUBSCRIPTION, listed, serve
from subscriptions.iam.methods import PUBLISHER, SUBSCRIBER
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.subscriptions import subscription_described, subscription_resource
from subscriptions.services import subscriptions
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_name

PUSHHUB = "pushhub.v1.Subscriptions."


@serve("PUT", SUBSCRIPTION, SUBSCRIBER, takes=fields.SUBSCRIPTION, gives=fields.SUBSCRIPTION)
def create_subscription(name: str, body: object, caller: Principal) -> Any:
    """Create a subscription."""
    return subscription_resource(subscriptions.create_subscription(name=name, subscription=body, caller=caller))


@serve("GET", SUBSCRIPTION, SUBSCRIBER, gives=fields.SUBSCRIPTION)
def get_subscription(name: str) -> Any:
    """Return a subscription."""
    return subscription_described(selectors.get_subscription(name=name))


@serve("PATCH", SUBSCRIPTION, SUBSCRIBER, takes=fields.UPDATE_SUBSCRIPTION, gives=fields.SUBSCRIPTION)
def update_subscription(name: str, body: object, caller: Principal) -> Any:
    """Change the fields of a subscription that the mask names."""
    resource = subscription_resource(subscriptions.update_subscription(name=name, request=body, caller=caller))
    resource.pop("detached", None)  # as production does
    return resource


@serve("GET", PROJECT + "/subscriptions", SUBSCRIBER, gives=list_of("subscriptions", fields.SUBSCRIPTION))
def list_subscriptions(name: str, page: Page, caller: Principal) -> Any:
    """Return the subscriptions of a project."""
    owner = ensure_project(project=names.parse_project(name), caller=caller)
    keys, scope = ("subscription_id",), f"subscriptions {owner.pk}"
    rows, token = paged(selectors.subscriptions_of(owner), page, keys=keys, scope=scope, large="message_transforms")
    return listed("subscriptions", [subscription_resource(row) for row in rows], token)


@serve("POST", SUBSCRIPTION + ":modifyPushConfig", SUBSCRIBER, takes=fields.MODIFY_PUSH_CONFIG)
def modify_push_config(name: str, body: object, caller: Principal) -> None:
    """Change the push config: from push to pull, from pull to push, or to another endpoint."""
    subscriptions.modify_push_config(name=name, request=body, caller=caller)


@serve("POST", SUBSCRIPTION + ":detach", PUBLISHER, takes=fields.DETACH_SUBSCRIPTION)
def detach_subscription(name: str, body: object) -> None:
    """Detach a subscription from its topic permanently."""
    check_name(fields.DETACH_SUBSCRIPTION.read(body), name, field="subscription")
    subscriptions.detach_subscription(name=name)


delete_subscription = serve("DELETE", SUBSCRIPTION, SUBSCRIBER)(subscriptions.delete_subscription)
pause_subscription = serve("POST", SUBSCRIPTION + ":pause", PUSHHUB)(subscriptions.pause_subscription)
resume_subscription = serve("POST", SUBSCRIPTION + ":resume", PUSHHUB)(subscriptions.resume_subscription)
