"""Runs cases of Google's Python client against PUBSUB_EMULATOR_HOST.

Reads the name of a case from each line of its input and prints its result as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import grpc
from google.api_core.exceptions import InvalidArgument
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import FlowControl, PublisherOptions, SubscriberOptions
from google.pubsub_v1 import SchemaServiceClient
from google.pubsub_v1.services.schema_service.transports import SchemaServiceGrpcTransport
from google.pubsub_v1.types import Encoding, Schema
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PROJECT = "projects/shop"
#: How long a case may wait for its messages.
PATIENCE_SECONDS = 60
#: Flow control of a client that holds what it got for ten minutes, so that nothing comes back because a lease lapsed.
LONG_LEASES = FlowControl(min_duration_per_lease_extension=600, max_duration_per_lease_extension=600)

publisher = pubsub_v1.PublisherClient(publisher_options=PublisherOptions(enable_message_ordering=True))
subscriber = pubsub_v1.SubscriberClient()


def create(name: str, *, topic_fields: dict[str, Any] | None = None, **fields: Any) -> tuple[str, str]:
    """Create a topic and a subscription to it; return their names."""
    topic, subscription = f"{PROJECT}/topics/{name}", f"{PROJECT}/subscriptions/{name}"
    publisher.create_topic({"name": topic, **(topic_fields or {})})
    subscriber.create_subscription({"name": subscription, "topic": topic, **fields})
    return topic, subscription


def publish(topic: str, *texts: str, **fields: str) -> None:
    """Publish messages and return when the server has them all."""
    futures = [publisher.publish(topic, text.encode(), **fields) for text in texts]
    assert len({future.result(timeout=PATIENCE_SECONDS) for future in futures}) == len(texts)


def receive(subscription: str, is_done: Callable[[Message], bool], client: Any = subscriber, **options: Any) -> None:
    """Hand messages to a function, one at a time, until it returns true; later messages are nacked."""
    lock, done = threading.Lock(), threading.Event()
    errors: list[BaseException] = []

    def handle(message: Message) -> None:
        with lock:
            try:
                if done.is_set():
                    message.nack()
                elif is_done(message):
                    done.set()
            except BaseException as error:
                errors.append(error)
                done.set()

    future = client.subscribe(subscription, callback=handle, await_callbacks_on_shutdown=True, **options)
    has_ended = done.wait(PATIENCE_SECONDS)
    future.cancel()
    future.result(timeout=PATIENCE_SECONDS)
    assert has_ended, f"not all messages came within {PATIENCE_SECONDS} s"
    if errors:
        raise errors[0]


def receive_all(subscription: str, count: int, client: Any = subscriber, **options: Any) -> list[Message]:
    """Acknowledge `count` messages; return them in the order in which they came."""
    received: list[Message] = []

    def is_done(message: Message) -> bool:
        message.ack()
        received.append(message)
        return len(received) == count

    receive(subscription, is_done, client, **options)
    return received


def texts_of(messages: list[Message]) -> list[str]:
    return [message.data.decode() for message in messages]


def publish_and_receive() -> None:
    """All published messages arrive once, with their attributes."""
    topic, subscription = create("publish")
    for number in range(1000):
        publisher.publish(topic, str(number).encode(), number=str(number))
    messages = receive_all(subscription, 1000)
    assert set(texts_of(messages)) == {str(number) for number in range(1000)}
    assert all(message.attributes["number"] == message.data.decode() for message in messages)


def ordered() -> None:
    """The messages of each ordering key arrive in the order in which they were published."""
    topic, subscription = create("ordered", enable_message_ordering=True)
    futures = [
        publisher.publish(topic, str(number).encode(), ordering_key=f"key {number % 4}") for number in range(400)
    ]
    assert len({future.result(timeout=PATIENCE_SECONDS) for future in futures}) == 400
    by_key: dict[str, list[int]] = defaultdict(list)
    for message in receive_all(subscription, 400):
        by_key[message.ordering_key].append(int(message.data))
    assert by_key == {f"key {key}": list(range(key, 400, 4)) for key in range(4)}


def streaming() -> None:
    """A stream brings no more messages than it asked for, and a nacked message again."""
    topic, subscription = create("streaming")
    publish(topic, *map(str, range(100)))
    deliveries: dict[str, int] = defaultdict(int)
    acked: list[str] = []

    def is_done(message: Message) -> bool:
        deliveries[message.message_id] += 1
        if deliveries[message.message_id] == 1 and message.data.endswith(b"7"):
            message.nack()
        else:
            message.ack()
            acked.append(message.message_id)
        return len(acked) == 100

    receive(subscription, is_done, flow_control=FlowControl(max_messages=10))
    assert len(deliveries) == 100


def exactly_once() -> None:
    """Acknowledgements are confirmed, and what is confirmed never comes again."""
    topic, subscription = create("exactly-once", enable_exactly_once_delivery=True)
    publish(topic, *map(str, range(50)))
    confirmations: dict[str, Any] = {}

    def is_done(message: Message) -> bool:
        assert message.message_id not in confirmations, f"message {message.message_id} came again"
        confirmations[message.message_id] = message.ack_with_response()
        return len(confirmations) == 50

    receive(subscription, is_done)
    answers = [confirmation.result(timeout=PATIENCE_SECONDS) for confirmation in confirmations.values()]
    assert answers == [AcknowledgeStatus.SUCCESS] * 50, answers
    publish(topic, "last")
    assert texts_of(receive_all(subscription, 1)) == ["last"]


def dead_letters() -> None:
    """A message that is nacked too often goes to the dead-letter topic."""
    dead_topic, dead_subscription = create("dead")
    policy = {"dead_letter_topic": dead_topic, "max_delivery_attempts": 5}
    topic, subscription = create("dead-letters", dead_letter_policy=policy)
    publish(topic, "hopeless")
    attempts: list[int | None] = []

    def is_done(message: Message) -> bool:
        attempts.append(message.delivery_attempt)
        message.nack()
        return len(attempts) == 5

    receive(subscription, is_done)
    assert attempts == [1, 2, 3, 4, 5], attempts
    [dead] = receive_all(dead_subscription, 1)
    assert dead.data == b"hopeless"
    assert dead.attributes["CloudPubSubDeadLetterSourceSubscription"] == "dead-letters"


def schemas() -> None:
    """A topic with a schema refuses what doesn't match it."""
    definition = '{"type": "record", "name": "Order", "fields": [{"name": "count", "type": "int"}]}'
    with grpc.insecure_channel(os.environ["PUBSUB_EMULATOR_HOST"]) as channel:
        client = SchemaServiceClient(transport=SchemaServiceGrpcTransport(channel=channel))
        schema = {"type_": Schema.Type.AVRO, "definition": definition}
        created = client.create_schema({"parent": PROJECT, "schema_id": "order", "schema": schema})
    settings = {"schema": created.name, "encoding": Encoding.JSON}
    topic, subscription = create("schemas", topic_fields={"schema_settings": settings})
    publish(topic, '{"count": 1}')
    try:
        publish(topic, '{"count": "many"}')
    except InvalidArgument:
        pass
    else:
        raise AssertionError("a message without the schema's form was taken")
    [received] = receive_all(subscription, 1)
    assert received.attributes["googclient_schemaencoding"] == "JSON"


def policies() -> None:
    """Policies are set, read and tested, also with members that the server doesn't know."""
    topic, _ = create("iam")
    binding = {"role": "roles/pubsub.viewer", "members": ["group:readers@example.com"]}
    publisher.set_iam_policy({"resource": topic, "policy": {"bindings": [binding]}})
    policy = publisher.get_iam_policy({"resource": topic})
    assert list(policy.bindings[0].members) == binding["members"], policy
    permissions = ["pubsub.topics.publish", "pubsub.topics.get"]
    tested = publisher.test_iam_permissions({"resource": topic, "permissions": permissions})
    assert list(tested.permissions) == permissions, tested


def tracing() -> None:
    """With tracing on, a message brings its publisher's trace to the subscriber."""
    topic, subscription = create("tracing")
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    options = PublisherOptions(enable_open_telemetry_tracing=True)
    traced = pubsub_v1.PublisherClient(publisher_options=options)
    traced.publish(topic, b"traced").result(timeout=PATIENCE_SECONDS)
    traced.stop()
    with pubsub_v1.SubscriberClient(subscriber_options=SubscriberOptions(enable_open_telemetry_tracing=True)) as client:
        [received] = receive_all(subscription, 1, client)
    parent = received.attributes["googclient_traceparent"].split("-")[1]
    created = [span for span in spans.get_finished_spans() if span.name.endswith(" create")]
    assert parent in [f"{span.context.trace_id:032x}" for span in created]


def idle() -> None:
    """A client goes on after its connections were idle."""
    topic, subscription = create("idle")
    texts: list[str] = []
    future = subscriber.subscribe(
        subscription, callback=lambda message: (texts.append(message.data.decode()), message.ack())
    )
    for text in ("0", "1"):
        publish(topic, text)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while text not in texts:
            assert time.monotonic() < give_up, f"message {text} did not come"
            time.sleep(0.01)
        if text == "0":
            time.sleep(float(os.environ["IDLE_SECONDS"]))
    future.cancel()
    future.result(timeout=PATIENCE_SECONDS)


def shutdown() -> None:
    """A subscriber that stops loses nothing: the next one gets at once what the first one hadn't acknowledged."""
    topic, subscription = create("shutdown", ack_deadline_seconds=600)
    publish(topic, *map(str, range(100)))
    received = receive_all(subscription, 30, flow_control=LONG_LEASES)
    received += receive_all(subscription, 70, flow_control=LONG_LEASES)
    assert len(set(texts_of(received))) == 100


CASES = {
    "publish": publish_and_receive,
    "ordered": ordered,
    "streaming": streaming,
    "exactly-once": exactly_once,
    "dead-letters": dead_letters,
    "schemas": schemas,
    "iam": policies,
    "tracing": tracing,
    "idle": idle,
    "shutdown": shutdown,
}


def main() -> None:
    for line in sys.stdin:
        case = line.strip()
        error = ""
        try:
            CASES[case]()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"case": case, "error": error}), flush=True)


if __name__ == "__main__":
    main()
