"""Subscriptions over REST."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, message
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.subscriptions import subscription_resource, subscription_resource_updated
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

TAGS = ["subscriptions"]


class SubscriptionList(ApiView):
    """The subscriptions of a project."""

    methods = {"GET": "google.pubsub.v1.Subscriber.ListSubscriptions"}

    @extend_schema(
        operation_id="subscriptions_list",
        tags=TAGS,
        parameters=PAGING,
        responses=list_of("subscriptions", fields.SUBSCRIPTION),
    )
    def get(self, request: Request, project: str) -> Response:
        page = Page.read(request.query_params)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.subscriptions(owner, page)
        return Response(listed("subscriptions", [subscription_resource(row) for row in rows], token))


class SubscriptionDetail(ApiView):
    """One subscription."""

    methods = {
        "PUT": "google.pubsub.v1.Subscriber.CreateSubscription",
        "GET": "google.pubsub.v1.Subscriber.GetSubscription",
        "PATCH": "google.pubsub.v1.Subscriber.UpdateSubscription",
        "DELETE": "google.pubsub.v1.Subscriber.DeleteSubscription",
    }

    @extend_schema(
        operation_id="subscriptions_create",
        tags=TAGS,
        request=body(fields.SUBSCRIPTION),
        responses=message(fields.SUBSCRIPTION),
    )
    def put(self, request: Request, project: str, subscription: str) -> Response:
        name = names.subscription_name(project, subscription)
        row = create_subscription(name=name, subscription=request.data, caller=caller_of(request))
        return Response(subscription_resource(row))

    @extend_schema(operation_id="subscriptions_get", tags=TAGS, responses=message(fields.SUBSCRIPTION))
    def get(self, request: Request, project: str, subscription: str) -> Response:
        name = names.subscription_name(project, subscription)
        return Response(subscription_resource(selectors.get_subscription(name=name)))

    @extend_schema(
        operation_id="subscriptions_patch",
        tags=TAGS,
        request=body(fields.UPDATE_SUBSCRIPTION),
        responses=message(fields.SUBSCRIPTION),
    )
    def patch(self, request: Request, project: str, subscription: str) -> Response:
        name = names.subscription_name(project, subscription)
        row = update_subscription(name=name, request=request.data, caller=caller_of(request))
        return Response(subscription_resource_updated(row))

    @extend_schema(operation_id="subscriptions_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str, subscription: str) -> Response:
        delete_subscription(name=names.subscription_name(project, subscription))
        return Response({})


class SubscriptionPushConfig(ApiView):
    """Change the push config: from push to pull, from pull to push, or to another endpoint."""

    methods = {"POST": "google.pubsub.v1.Subscriber.ModifyPushConfig"}

    @extend_schema(
        operation_id="subscriptions_modifyPushConfig",
        tags=TAGS,
        request=body(fields.MODIFY_PUSH_CONFIG),
        responses=EMPTY,
    )
    def post(self, request: Request, project: str, subscription: str) -> Response:
        name = names.subscription_name(project, subscription)
        modify_push_config(name=name, request=request.data, caller=caller_of(request))
        return Response({})


class SubscriptionDetach(ApiView):
    """Detach a subscription from its topic permanently."""

    methods = {"POST": "google.pubsub.v1.Publisher.DetachSubscription"}

    @extend_schema(
        operation_id="subscriptions_detach", tags=TAGS, request=body(fields.DETACH_SUBSCRIPTION), responses=EMPTY
    )
    def post(self, request: Request, project: str, subscription: str) -> Response:
        name = names.subscription_name(project, subscription)
        check_name(fields.DETACH_SUBSCRIPTION.read(request.data), name, field="subscription")
        detach_subscription(name=name)
        return Response({})


class SubscriptionPause(ApiView):
    """Stop pushing, and keep the push config and the messages."""

    methods = {"POST": "pushhub.v1.Subscriptions.PauseSubscription"}

    @extend_schema(operation_id="subscriptions_pause", tags=TAGS, request=None, responses=EMPTY)
    def post(self, request: Request, project: str, subscription: str) -> Response:
        pause_subscription(name=names.subscription_name(project, subscription), caller=caller_of(request))
        return Response({})


class SubscriptionResume(ApiView):
    """Push again, with the push config from before the pause."""

    methods = {"POST": "pushhub.v1.Subscriptions.ResumeSubscription"}

    @extend_schema(operation_id="subscriptions_resume", tags=TAGS, request=None, responses=EMPTY)
    def post(self, request: Request, project: str, subscription: str) -> Response:
        resume_subscription(name=names.subscription_name(project, subscription), caller=caller_of(request))
        return Response({})
