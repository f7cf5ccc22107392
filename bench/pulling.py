"""StreamingPull over a raw gRPC stream, with ordering keys: how fast messages arrive and are acknowledged."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
from google.pubsub_v1.types import pubsub

from bench.message import ATTRIBUTES, HELLO, TOPIC
from bench.processes import BenchError, process, say, wait_until
from bench.stand import Row, stand, subscription
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.ports import free_port

Request = pubsub.StreamingPullRequest.pb()
Response = pubsub.StreamingPullResponse.pb()
OUTSTANDING = 5000


def ordered(quick: bool) -> Row:
    """Open a stream while all messages wait, and measure until the last ack is stored."""
    count = 600 if quick else 30_000
    many = _rate(count, keys=count // 30)
    single_key = _rate(count // 3, keys=1)
    say(f"  ordered pull: {many:,.0f} messages/s on {count // 30:,} keys, {single_key:,.0f} on one key")
    return {"ordered_pull_per_second": round(many), "ordered_pull_one_key_per_second": round(single_key)}


def _rate(count: int, *, keys: int) -> float:
    address = f"127.0.0.1:{free_port()}"
    with stand() as prepared:
        prepared.subscribe("", enableMessageOrdering=True)
        _publish(count, keys)
        server = [sys.executable, "-m", "pushhub.runtime.grpcserver"]
        env = prepared.env | {"PUSHHUB_GRPC": address}
        with process(server, env=env), grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)
            began = time.monotonic()
            _receive(channel, count)
            wait_until(lambda: not prepared.left(), seconds=60, what="the last ack")
            return count / (time.monotonic() - began)


def _publish(count: int, keys: int) -> None:
    topic = get_topic(name=TOPIC)
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        messages = [NewMessage(HELLO, {**ATTRIBUTES, "n": str(n // keys)}, f"key-{n % keys}") for n in numbers]
        publish_message(topic=topic, messages=messages)


def _receive(channel: grpc.Channel, count: int) -> None:
    """Acknowledge each response at once, on the stream."""
    requests: queue.Queue[Any] = queue.Queue()
    requests.put(
        Request(
            subscription=subscription("bench"), stream_ack_deadline_seconds=60, max_outstanding_messages=OUTSTANDING
        )
    )
    responses: Iterator[Any] = channel.stream_stream(
        "/google.pubsub.v1.Subscriber/StreamingPull",
        request_serializer=Request.SerializeToString,
        response_deserializer=Response.FromString,
    )(iter(requests.get, None), timeout=600)
    last: dict[str, int] = {}
    received = 0
    for response in responses:
        for message in response.received_messages:
            key, number = message.message.ordering_key, int(message.message.attributes["n"])
            if number != last.get(key, -1) + 1:
                raise BenchError(f"message {number} of {key} came after {last.get(key)}")
            last[key] = number
        received += len(response.received_messages)
        requests.put(Request(ack_ids=[message.ack_id for message in response.received_messages]))
        if received == count:
            # The server ends the stream when it has received the acks.
            requests.put(None)
