"""Pulling over REST."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request

from deliveries.api.pull_requests import ACKNOWLEDGE, MODIFY_ACK_DEADLINE, PULL, PULL_RESPONSE
from deliveries.pull.deadlines import modify_ack_deadlines
from deliveries.pull.leasing import Received, pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.telemetry import kinds
from deliveries.telemetry.requests import request_counted
from pushhub.common.names import subscription_name
from pushhub.common.protojson import Message
from subscriptions.api.base import ApiView, serve
from subscriptions.models import Subscription
from subscriptions.selectors import read_subscription
from subscriptions.services.rows import check_name

#: How long production holds a pull that finds nothing (docs/spec.md#pull-requests).
HOLD_SECONDS = 20.0
SUBSCRIBER = "google.pubsub.v1.Subscriber."


class SubscriptionPull(ApiView):
    """`POST /v1/projects/{project}/subscriptions/{subscription}:pull`."""

    @serve(SUBSCRIBER + "Pull", "subscriptions_pull", takes=PULL, gives=PULL_RESPONSE)
    def post(self, request: Request, project: str, subscription: str) -> Any:
        content, row = _read(PULL, request, project, subscription)
        count = content.get("maxMessages", 0)
        wait_seconds = 0.0 if content.get("returnImmediately") else HOLD_SECONDS
        with request_counted(kinds.PULL_REQUESTS, row.pk):
            received = pull_messages(subscription=row, max_messages=count, wait_seconds=wait_seconds)
        return {"receivedMessages": [_received(message) for message in received]} if received else {}


class SubscriptionAcknowledge(ApiView):
    """`POST ...:acknowledge`."""

    @serve(SUBSCRIBER + "Acknowledge", "subscriptions_acknowledge", takes=ACKNOWLEDGE)
    def post(self, request: Request, project: str, subscription: str) -> None:
        content, row = _read(ACKNOWLEDGE, request, project, subscription)
        with request_counted(kinds.ACK_REQUESTS, row.pk):
            acknowledge_messages(subscription=row, ack_ids=content.get("ackIds", []))


class SubscriptionModifyAckDeadline(ApiView):
    """`POST ...:modifyAckDeadline`."""

    @serve(SUBSCRIBER + "ModifyAckDeadline", "subscriptions_modifyAckDeadline", takes=MODIFY_ACK_DEADLINE)
    def post(self, request: Request, project: str, subscription: str) -> None:
        content, row = _read(MODIFY_ACK_DEADLINE, request, project, subscription)
        with request_counted(kinds.MODACK_REQUESTS, row.pk):
            modify_ack_deadlines(
                subscription=row, ack_ids=content.get("ackIds", []), seconds=content.get("ackDeadlineSeconds", 0)
            )


def _read(kind: Message, request: Request, project: str, subscription: str) -> tuple[dict[str, Any], Subscription]:
    name = subscription_name(project, subscription)
    content = kind.read(request.data)
    check_name(content, name, field="subscription")
    return content, read_subscription(name=name)


def _received(received: Received) -> dict[str, Any]:
    shown: dict[str, Any] = {"ackId": received.ack_id, "message": received.message}
    if received.delivery_attempt:
        shown["deliveryAttempt"] = received.delivery_attempt
    return shown
