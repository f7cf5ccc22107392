"""Subscriptions over REST."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.subscriptions import (
    subscription_described,
    subscription_resource,
    subscription_resource_updated,
)
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_name
from subscriptions.services.subscriptions import (
    create_subscription,
    delete_subscription,
    detach_subscription,
    modify_push_config,
    pause_subscription,
    resume_subscription,
    update_subscription,
)

SUBSCRIBER = "google.pubsub.v1.Subscriber."


class SubscriptionList(ApiView):
    """The subscriptions of a project."""

    @serve(
        SUBSCRIBER + "ListSubscriptions",
        "subscriptions_list",
        gives=list_of("subscriptions", fields.SUBSCRIPTION),
        parameters=PAGING,
    )
    def get(self, request: Request, project: str) -> Any:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.subscriptions(owner, page)
        return listed("subscriptions", [subscription_resource(row) for row in rows], token)


class SubscriptionDetail(ApiView):
    """One subscription."""

    @serve(
        SUBSCRIBER + "CreateSubscription", "subscriptions_create", takes=fields.SUBSCRIPTION, gives=fields.SUBSCRIPTION
    )
    def put(self, request: Request, name: str) -> Any:
        row = create_subscription(name=name, subscription=request.data, caller=caller_of(request))
        return subscription_resource(row)

    @serve(SUBSCRIBER + "GetSubscription", "subscriptions_get", gives=fields.SUBSCRIPTION)
    def get(self, request: Request, name: str) -> Any:
        return subscription_described(selectors.get_subscription(name=name))

    @serve(
        SUBSCRIBER + "UpdateSubscription",
        "subscriptions_patch",
        takes=fields.UPDATE_SUBSCRIPTION,
        gives=fields.SUBSCRIPTION,
    )
    def patch(self, request: Request, name: str) -> Any:
        row = update_subscription(name=name, request=request.data, caller=caller_of(request))
        return subscription_resource_updated(row)

    @serve(SUBSCRIBER + "DeleteSubscription", "subscriptions_delete")
    def delete(self, request: Request, name: str) -> None:
        delete_subscription(name=name)


class SubscriptionPushConfig(ApiView):
    """Change the push config: from push to pull, from pull to push, or to another endpoint."""

    @serve(SUBSCRIBER + "ModifyPushConfig", "subscriptions_modifyPushConfig", takes=fields.MODIFY_PUSH_CONFIG)
    def post(self, request: Request, name: str) -> None:
        modify_push_config(name=name, request=request.data, caller=caller_of(request))


class SubscriptionDetach(ApiView):
    """Detach a subscription from its topic permanently."""

    @serve("google.pubsub.v1.Publisher.DetachSubscription", "subscriptions_detach", takes=fields.DETACH_SUBSCRIPTION)
    def post(self, request: Request, name: str) -> None:
        check_name(fields.DETACH_SUBSCRIPTION.read(request.data), name, field="subscription")
        detach_subscription(name=name)


class SubscriptionPause(ApiView):
    """Stop pushing, and keep the push config and the messages."""

    @serve("pushhub.v1.Subscriptions.PauseSubscription", "subscriptions_pause")
    def post(self, request: Request, name: str) -> None:
        pause_subscription(name=name, caller=caller_of(request))


class SubscriptionResume(ApiView):
    """Push again, with the push config from before the pause."""

    @serve("pushhub.v1.Subscriptions.ResumeSubscription", "subscriptions_resume")
    def post(self, request: Request, name: str) -> None:
        resume_subscription(name=name, caller=caller_of(request))
