"""Publish, Pull, Acknowledge and ModifyAckDeadline over gRPC."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1.types import pubsub

from deliveries import pull
from deliveries.api.views import REGION_HEADER
from deliveries.publish.request import published_messages_read, region_parse
from deliveries.publish.service import message_publish
from deliveries.rpc.bell import bell
from deliveries.rpc.protobuf import received_messages
from deliveries.rpc.streams import leases_changed
from pushhub.common.principals import Principal
from subscriptions.rpc.calls import LARGE_REQUEST_BYTES, Call, Direct, Method, Unary, Waiting, in_thread, stopping
from subscriptions.selectors import subscription_get, topic_get

PublishResponse = pubsub.PublishResponse.pb()
PullResponse = pubsub.PullResponse.pb()
#: How long production holds a pull that finds nothing (pubsub-spec.md, section 1.2).
HOLD_SECONDS = 20.0
#: A client that named a deadline gets its empty answer this much before it.
ANSWER_SECONDS = 0.5


def publish(request: Any, call: Call) -> Any:
    """Store the messages; the region of publishing may be named in the metadata."""
    found = topic_get(name=request.topic, field="topic")
    messages = published_messages_read(request.messages)
    region = region_parse(call.metadata(REGION_HEADER.lower()))
    ids = message_publish(topic=found, messages=messages, region=region)
    return PublishResponse(message_ids=ids)


async def messages_pull(request: Any, call: Call) -> Any:
    """What can be leased at once or, unless the caller wants no waiting, before long."""
    found = await in_thread(_subscription, request.subscription)
    loop = bell().loop
    ends = loop.time()
    if not request.return_immediately:
        ends += min(HOLD_SECONDS, call.seconds_left() - ANSWER_SECONDS)
    while True:
        received = await in_thread(_lease, found, request.max_messages)
        if received or loop.time() >= ends or stopping().is_set():
            return PullResponse(received_messages=received_messages(received))
        await bell().wait(found.pk, seconds=ends - loop.time())


def _lease(found: Any, count: int) -> list[pull.Received]:
    return pull.messages_pull(subscription=found, max_messages=count)


def _subscription(name: str) -> Any:
    return subscription_get(name=name)


def messages_acknowledge(request: Any, caller: Principal) -> Empty:
    found, ack_ids = _subscription(request.subscription), list(request.ack_ids)
    try:
        pull.messages_acknowledge(subscription=found, ack_ids=ack_ids)
    finally:
        leases_changed(found.pk, ack_ids, seconds=0)
    return Empty()


def ack_deadlines_modify(request: Any, caller: Principal) -> Empty:
    found, ack_ids = _subscription(request.subscription), list(request.ack_ids)
    seconds = request.ack_deadline_seconds
    pull.ack_deadlines_modify(subscription=found, ack_ids=ack_ids, seconds=seconds)
    leases_changed(found.pk, ack_ids, seconds=seconds)
    return Empty()


PUBLISHER: dict[str, Method] = {
    "Publish": Direct(pubsub.PublishRequest.pb(), PublishResponse, publish, most_bytes=LARGE_REQUEST_BYTES)
}
SUBSCRIBER: dict[str, Method] = {
    "Pull": Waiting(pubsub.PullRequest.pb(), PullResponse, messages_pull),
    "Acknowledge": Unary(pubsub.AcknowledgeRequest.pb(), Empty, messages_acknowledge),
    "ModifyAckDeadline": Unary(pubsub.ModifyAckDeadlineRequest.pb(), Empty, ack_deadlines_modify),
}
