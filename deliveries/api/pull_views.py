"""Pulling over REST."""

from __future__ import annotations

import threading
from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deliveries import pull
from deliveries.api.pull_requests import ACKNOWLEDGE, MODIFY_ACK_DEADLINE, PULL, PULL_RESPONSE
from pushhub.common.names import subscription_name
from pushhub.common.protojson import Message
from subscriptions.api.base import ApiView
from subscriptions.api.openapi import EMPTY, body, message
from subscriptions.models import Subscription
from subscriptions.selectors import subscription_get
from subscriptions.services.rows import check_name

TAGS = ["subscriptions"]
#: How long production holds a pull that finds nothing (docs/spec.md#pull-requests).
HOLD_SECONDS = 20.0
#: A pull that is held takes a thread of the web server: half of them may be, and further ones answer at once.
_held = threading.BoundedSemaphore(max(settings.WEB_THREADS // 2, 1))


class SubscriptionPull(ApiView):
    """`POST /v1/projects/{project}/subscriptions/{subscription}:pull`."""

    methods = {"POST": "google.pubsub.v1.Subscriber.Pull"}

    @extend_schema(operation_id="subscriptions_pull", tags=TAGS, request=body(PULL), responses=message(PULL_RESPONSE))
    def post(self, request: Request, project: str, subscription: str) -> Response:
        given, found = _read(PULL, request, project, subscription)
        count = given.get("maxMessages", 0)
        may_wait = not given.get("returnImmediately") and _held.acquire(blocking=False)
        try:
            received = pull.messages_pull(
                subscription=found, max_messages=count, wait_seconds=HOLD_SECONDS if may_wait else 0.0
            )
        finally:
            if may_wait:
                _held.release()
        return Response({"receivedMessages": [_received(one) for one in received]} if received else {})


class SubscriptionAcknowledge(ApiView):
    """`POST ...:acknowledge`."""

    methods = {"POST": "google.pubsub.v1.Subscriber.Acknowledge"}

    @extend_schema(operation_id="subscriptions_acknowledge", tags=TAGS, request=body(ACKNOWLEDGE), responses=EMPTY)
    def post(self, request: Request, project: str, subscription: str) -> Response:
        given, found = _read(ACKNOWLEDGE, request, project, subscription)
        pull.messages_acknowledge(subscription=found, ack_ids=given.get("ackIds", []))
        return Response({})


class SubscriptionModifyAckDeadline(ApiView):
    """`POST ...:modifyAckDeadline`."""

    methods = {"POST": "google.pubsub.v1.Subscriber.ModifyAckDeadline"}

    @extend_schema(
        operation_id="subscriptions_modifyAckDeadline", tags=TAGS, request=body(MODIFY_ACK_DEADLINE), responses=EMPTY
    )
    def post(self, request: Request, project: str, subscription: str) -> Response:
        given, found = _read(MODIFY_ACK_DEADLINE, request, project, subscription)
        pull.ack_deadlines_modify(
            subscription=found, ack_ids=given.get("ackIds", []), seconds=given.get("ackDeadlineSeconds", 0)
        )
        return Response({})


def _read(kind: Message, request: Request, project: str, subscription: str) -> tuple[dict[str, Any], Subscription]:
    name = subscription_name(project, subscription)
    given = kind.read(request.data)
    check_name(given, name, field="subscription")
    return given, subscription_get(name=name)


def _received(one: pull.Received) -> dict[str, Any]:
    shown: dict[str, Any] = {"ackId": one.ack_id, "message": one.message}
    if one.delivery_attempt:
        shown["deliveryAttempt"] = one.delivery_attempt
    return shown
