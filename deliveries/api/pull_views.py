"""Pulling over REST."""

from __future__ import annotations

from functools import partial
from typing import Any

from rest_framework.request import Request

from deliveries.publish.request import PUBSUB_MESSAGE
from deliveries.pull.deadlines import modify_ack_deadlines
from deliveries.pull.leasing import Received, pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.telemetry import kinds
from deliveries.telemetry.sinks.requests import request_counted
from pushhub.common.peers import HAS_LEFT
from pushhub.common.principals import Principal
from pushhub.common.protojson import Bool, Integer, Message, Repeated, String
from subscriptions.api.routes import SUBSCRIPTION, serve
from subscriptions.iam.methods import SUBSCRIBER, authorize_row
from subscriptions.models import Subscription
from subscriptions.selectors import read_subscription
from subscriptions.services.rows import check_name

#: How long production holds a pull that finds nothing (docs/spec-delivery.md#pull-requests).
HOLD_SECONDS = 20.0


PULL_METHOD = SUBSCRIBER + "Pull"
NAME = String(2048)
#: An ack id has at most 400 characters, and all of them half a megabyte, so their number can be bounded here too.
ACK_IDS = Repeated(String(1000), max_items=20_000)

PULL = Message("PullRequest", {"subscription": NAME, "returnImmediately": Bool(), "maxMessages": Integer(32)})
ACKNOWLEDGE = Message("AcknowledgeRequest", {"subscription": NAME, "ackIds": ACK_IDS})
MODIFY_ACK_DEADLINE = Message(
    "ModifyAckDeadlineRequest", {"subscription": NAME, "ackIds": ACK_IDS, "ackDeadlineSeconds": Integer(32)}
)
RECEIVED = Message("ReceivedMessage", {"ackId": String(), "message": PUBSUB_MESSAGE, "deliveryAttempt": Integer(32)})
PULL_RESPONSE = Message("PullResponse", {"receivedMessages": Repeated(RECEIVED)})


@serve("POST", SUBSCRIPTION + ":pull", PULL_METHOD, takes=PULL, gives=PULL_RESPONSE)
def pull(name: str, body: object, request: Request, caller: Principal) -> Any:
    """Pull messages. If there are none, the request waits for some, unless the caller won't, or has left."""
    content, row = _read(PULL, name, body)
    count = content.get("maxMessages", 0)
    wait_seconds = 0.0 if content.get("returnImmediately") else HOLD_SECONDS
    with request_counted(kinds.PULL_REQUESTS, row.pk):
        received = pull_messages(
            subscription=row,
            max_messages=count,
            wait_seconds=wait_seconds,
            has_left=request.META.get(HAS_LEFT),
            check_rights=partial(authorize_row, caller, PULL_METHOD, row),
        )
    return {"receivedMessages": [_received(message) for message in received]} if received else {}


@serve("POST", SUBSCRIPTION + ":acknowledge", SUBSCRIBER, takes=ACKNOWLEDGE)
def acknowledge(name: str, body: object) -> None:
    """Acknowledge messages by their ack ids."""
    content, row = _read(ACKNOWLEDGE, name, body)
    with request_counted(kinds.ACK_REQUESTS, row.pk):
        acknowledge_messages(subscription=row, ack_ids=content.get("ackIds", []))


@serve("POST", SUBSCRIPTION + ":modifyAckDeadline", SUBSCRIBER, takes=MODIFY_ACK_DEADLINE)
def modify_ack_deadline(name: str, body: object) -> None:
    """Change the ack deadline of messages. A deadline of 0 returns them."""
    content, row = _read(MODIFY_ACK_DEADLINE, name, body)
    with request_counted(kinds.MODACK_REQUESTS, row.pk):
        modify_ack_deadlines(
            subscription=row, ack_ids=content.get("ackIds", []), seconds=content.get("ackDeadlineSeconds", 0)
        )


def _read(kind: Message, name: str, body: object) -> tuple[dict[str, Any], Subscription]:
    content = kind.read(body)
    check_name(content, name, field="subscription")
    return content, read_subscription(name=name)


def _received(received: Received) -> dict[str, Any]:
    shown: dict[str, Any] = {"ackId": received.ack_id, "message": received.message}
    if received.delivery_attempt:
        shown["deliveryAttempt"] = received.delivery_attempt
    return shown
