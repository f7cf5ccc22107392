"""Publish, Pull, Acknowledge and ModifyAckDeadline over gRPC."""

from __future__ import annotations

import asyncio
import binascii
from contextlib import suppress
from typing import Any

import redis
from google.protobuf.empty_pb2 import Empty

from deliveries.api.views import REGION_HEADER
from deliveries.publish.request import parse_region, read_published_messages
from deliveries.publish.service import publish_message
from deliveries.publish.writer import SmallPublish, publish_writer_of
from deliveries.pull import deadlines, leasing, settling
from deliveries.pull.leasing import Received
from deliveries.rpc.bell import bell
from deliveries.rpc.streams import give_back_later, leases_changed
from deliveries.rules.ids import publish_time_ms
from deliveries.telemetry import kinds
from deliveries.telemetry.sinks.requests import request_counted
from pushhub.common.errors import PushHubError
from pushhub.common.pubsubtypes import pubsub
from subscriptions.iam.methods import authorize_row
from subscriptions.rpc.calls import LARGE_REQUEST_BYTES, Call, Method, Unary, Waiting, in_thread, stopping
from subscriptions.selectors import get_topic, read_subscription

PublishResponse = pubsub.PublishResponse
PullResponse = pubsub.PullResponse
REGION_METADATA = REGION_HEADER.lower()
#: A request with more messages gains little from being stored together with others.
QUICK_MESSAGES = 100
#: How long production holds a pull that finds nothing (docs/spec-delivery.md#pull-requests).
HOLD_SECONDS = 20.0
#: An empty answer is sent this long before the client's deadline.
ANSWER_SECONDS = 0.5
#: A response has at most this many bytes of messages, unless it has a single message; clients take 4 MB by default.
RESPONSE_BYTES = 3_000_000


def add_received_message(response: Any, received: Received) -> Any:
    """Add a message to a PullResponse or a StreamingPullResponse; return its ReceivedMessage.

    It is filled in place, as protocol buffers copy a message that is assigned or appended.
    """
    target = response.received_messages.add(ack_id=received.ack_id, delivery_attempt=received.delivery_attempt)
    content, message = received.message, target.message
    message.message_id = content["messageId"]
    if "data" in content:
        message.data = binascii.a2b_base64(content["data"])
    if "attributes" in content:
        message.attributes.update(content["attributes"])
    if "orderingKey" in content:
        message.ordering_key = content["orderingKey"]
    publish_time = message.publish_time
    publish_time.seconds, milliseconds = divmod(publish_time_ms(int(content["messageId"])), 1000)
    publish_time.nanos = milliseconds * 1_000_000
    return target


def publish(request: Any, call: Call) -> Any:
    """Store the messages. The metadata may name the region of publishing."""
    topic = get_topic(name=request.topic, field="topic")
    messages = read_published_messages(request.messages)
    region = parse_region(call.metadata(REGION_METADATA))
    ids = publish_message(topic=topic, messages=messages, region=region)
    return PublishResponse(message_ids=ids)


async def publish_quickly(request: Any, call: Call) -> Any:
    """Store the messages together with other requests; return None for a request that `publish` has to answer."""
    loop = asyncio.get_running_loop()
    writer = publish_writer_of(loop)
    if writer is None or len(request.messages) > QUICK_MESSAGES:
        return None
    try:
        messages = read_published_messages(request.messages)
        region = parse_region(call.metadata(REGION_METADATA))
    except PushHubError:
        return None
    stored: asyncio.Future[list[str] | None] = loop.create_future()

    def done(ids: list[str] | None) -> None:
        if not stored.done():  # the call may be cancelled meanwhile
            stored.set_result(ids)

    writer.submit(SmallPublish(call.authorization, request.topic, messages, region, done))
    ids = await stored
    return None if ids is None else PublishResponse(message_ids=ids)


async def pull_messages(request: Any, call: Call) -> Any:
    """Return the messages that can be leased now. If there are none, wait for some, unless the caller won't wait."""
    subscription = await in_thread(read_subscription, name=request.subscription)
    loop = asyncio.get_running_loop()
    ends = loop.time()
    if not request.return_immediately:
        ends += min(HOLD_SECONDS, call.seconds_left() - ANSWER_SECONDS)
    with request_counted(kinds.PULL_REQUESTS, subscription.pk):
        received = await _leased(subscription, request.max_messages)
        if not received and loop.time() < ends:
            received = await _received(subscription, request.max_messages, call, ends=ends)
    response = PullResponse()
    for message in received:
        add_received_message(response, message)
    return response


async def _received(subscription: Any, count: int, call: Call, *, ends: float) -> list[leasing.Received]:
    """Wait for messages until `ends`, in seconds of the loop's clock; return those that there are by then.

    Raises PermissionDenied once the caller may no longer pull.
    """
    loop = asyncio.get_running_loop()
    caller = await in_thread(call.caller)
    async with bell().listening(subscription.pk) as rings:
        while True:
            rings.hush()
            received = await _leased(subscription, count)
            if len(received) == count:
                rings.ring()  # there may be more, for another pull
            if received or loop.time() >= ends or stopping().is_set():
                return received
            await rings.wait(seconds=ends - loop.time())
            await in_thread(authorize_row, caller, call.method, subscription)


async def _leased(subscription: Any, count: int) -> list[leasing.Received]:
    """Lease messages. If the caller leaves meanwhile, they are given back."""
    pull = in_thread(leasing.pull_messages, subscription=subscription, max_messages=count, max_bytes=RESPONSE_BYTES)
    lease = asyncio.ensure_future(pull)
    try:
        return await asyncio.shield(lease)
    except asyncio.CancelledError:
        give_back_later(_give_back(subscription, lease))
        raise


async def _give_back(subscription: Any, lease: asyncio.Future[list[leasing.Received]]) -> None:
    received = (await asyncio.gather(lease, return_exceptions=True))[0]
    if isinstance(received, list) and received:
        ends_ms = {message.ack_id: message.ends_ms for message in received}
        with suppress(redis.RedisError):
            await in_thread(deadlines.give_back_leases, subscription=subscription, ends_ms=ends_ms)


def acknowledge_messages(request: Any, call: Call) -> Empty:
    subscription, ack_ids = read_subscription(name=request.subscription), list(request.ack_ids)
    try:
        with request_counted(kinds.ACK_REQUESTS, subscription.pk):
            settling.acknowledge_messages(subscription=subscription, ack_ids=ack_ids)
    finally:
        leases_changed(subscription.pk, ack_ids, seconds=0)
    return Empty()


def modify_ack_deadlines(request: Any, call: Call) -> Empty:
    subscription, ack_ids = read_subscription(name=request.subscription), list(request.ack_ids)
    seconds = request.ack_deadline_seconds
    with request_counted(kinds.MODACK_REQUESTS, subscription.pk):
        deadlines.modify_ack_deadlines(subscription=subscription, ack_ids=ack_ids, seconds=seconds)
    leases_changed(subscription.pk, ack_ids, seconds=seconds)
    return Empty()


PUBLISHER: dict[str, Method] = {
    "Publish": Unary(
        pubsub.PublishRequest,
        PublishResponse,
        publish,
        most_bytes=LARGE_REQUEST_BYTES,
        quick=publish_quickly,
    )
}
SUBSCRIBER: dict[str, Method] = {
    "Pull": Waiting(pubsub.PullRequest, PullResponse, pull_messages),
    "Acknowledge": Unary(pubsub.AcknowledgeRequest, Empty, acknowledge_messages),
    "ModifyAckDeadline": Unary(pubsub.ModifyAckDeadlineRequest, Empty, modify_ack_deadlines),
}
