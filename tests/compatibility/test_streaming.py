"""The high-level clients publish in batches and pull by stream, configured only by PUBSUB_EMULATOR_HOST."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.cloud.pubsub_v1.subscriber.message import Message

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from subscriptions.models import Subscription
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.compatibility.drivers import Node
from tests.grpcservers import GrpcServer
from tests.ports import wait_for

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTION = "projects/shop/subscriptions/worker"


@pytest.fixture
def publisher(server: GrpcServer) -> Iterator[pubsub_v1.PublisherClient]:
    ordering = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
    client = pubsub_v1.PublisherClient(publisher_options=ordering)
    yield client
    client.stop()
    client.transport.close()


@pytest.fixture
def subscriber(server: GrpcServer) -> Iterator[pubsub_v1.SubscriberClient]:
    with pubsub_v1.SubscriberClient() as client:
        yield client


class Collector:
    """Passes each message to `handle`, and is done when it has received `count` messages."""

    def __init__(self, count: int, handle: Callable[[Message], Any] = lambda message: message.ack()) -> None:
        self.messages: list[Message] = []
        self.done = threading.Event()
        self._count = count
        self._handle = handle
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        with self._lock:
            self._handle(message)
            self.messages.append(message)
            if len(self.messages) >= self._count:
                self.done.set()

    @property
    def texts(self) -> list[str]:
        return [message.data.decode() for message in self.messages]


def stream(client: pubsub_v1.SubscriberClient, collector: Collector, **options: Any) -> None:
    """Stream until the collector has all its messages, and then until every acknowledgement has been sent."""
    future = client.subscribe(SUBSCRIPTION, callback=collector, **options)
    try:
        wait_for(lambda: collector.done.is_set() or future.done(), what="the messages")
        assert not future.done(), future.exception()
    finally:
        future.cancel()
        future.result(timeout=30)


def nothing_left() -> bool:
    return not Delivery.objects.exists()


def create_topic_and_subscription(**fields: Any) -> None:
    create_topic(name=TOPIC, topic={})
    create_subscription(name=SUBSCRIPTION, subscription={"topic": TOPIC, **fields})


def publish(client: pubsub_v1.PublisherClient, texts: list[str], **more: Any) -> list[str]:
    futures: list[Future[str]] = [client.publish(TOPIC, text.encode(), **more) for text in texts]
    return [future.result(timeout=30) for future in futures]


def test_messages_published_in_batches_are_streamed_and_acknowledged(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription()
    texts = [f"message {number}" for number in range(3000)]
    ids = publish(publisher, texts, lang="en")
    collector = Collector(3000)
    stream(subscriber, collector)
    assert sorted(collector.texts) == sorted(texts)
    assert {message.message_id for message in collector.messages} == set(ids)
    assert collector.messages[0].attributes == {"lang": "en"}
    assert collector.messages[0].delivery_attempt is None
    wait_for(nothing_left, what="the acknowledgements")


def test_messages_that_are_published_while_a_stream_is_open_arrive(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription()
    collector = Collector(3)
    future = subscriber.subscribe(SUBSCRIPTION, callback=collector)
    for number in range(3):
        publish(publisher, [str(number)])
        wait_for(lambda: len(collector.messages) > number, what="the message")  # noqa: B023 - called at once
    future.cancel()
    future.result(timeout=30)
    assert collector.texts == ["0", "1", "2"]


def test_a_nacked_message_is_delivered_again(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription()
    publish(publisher, ["once more"])
    nacked: list[str] = []

    def handle(message: Message) -> None:
        if nacked:
            message.ack()
        else:
            nacked.append(message.message_id)
            message.nack()

    collector = Collector(2, handle)
    stream(subscriber, collector)
    assert collector.texts == ["once more", "once more"]
    wait_for(nothing_left, what="the acknowledgement")


def test_flow_control_holds_back_messages_that_the_client_has_no_room_for(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription()
    publish(publisher, [str(number) for number in range(60)])
    held: list[Message] = []
    most_held = 0
    collector = Collector(10, held.append)
    control = pubsub_v1.types.FlowControl(max_messages=10)
    future = subscriber.subscribe(SUBSCRIPTION, callback=collector, flow_control=control)
    assert collector.done.wait(60)
    # The client goes on reading when it holds fewer than eight of the ten messages that it has room for.
    while not nothing_left():
        wait_for(lambda: held or nothing_left(), what="a message")
        most_held = max(most_held, len(held))
        if held:
            held.pop().ack()
    assert most_held == 10
    future.cancel()
    future.result(timeout=30)
    assert len(set(collector.texts)) == 60


def test_messages_of_a_key_arrive_in_order(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription(enableMessageOrdering=True)
    futures = [
        publisher.publish(TOPIC, f"{key}{number}".encode(), ordering_key=key)
        for number in range(20)
        for key in ("a", "b")
    ]
    assert len({future.result(timeout=30) for future in futures}) == 40
    collector = Collector(40)
    stream(subscriber, collector)
    for key in ("a", "b"):
        texts_of_key = [text for text in collector.texts if text.startswith(key)]
        assert texts_of_key == [f"{key}{number}" for number in range(20)]


def test_many_messages_of_a_key_are_streamed_in_order_to_two_clients(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    """Google's integration tests for Go do the same. With one message of a key at a time, this would take too long."""
    create_topic_and_subscription(enableMessageOrdering=True)
    keys, count = ("a", "b", "c", "d"), 400
    futures = [
        publisher.publish(TOPIC, f"{key}{number}".encode(), ordering_key=key) for number in range(count) for key in keys
    ]
    assert len({future.result(timeout=60) for future in futures}) == count * len(keys)
    collector = Collector(count * len(keys))
    with pubsub_v1.SubscriberClient() as second:
        second_future = second.subscribe(SUBSCRIPTION, callback=collector)
        stream(subscriber, collector)
        second_future.cancel()
        second_future.result(timeout=30)
    for key in keys:
        texts_of_key = [text for text in collector.texts if text.startswith(key)]
        assert list(dict.fromkeys(texts_of_key)) == [f"{key}{number}" for number in range(count)]
    wait_for(nothing_left, what="the acknowledgements")


def test_the_leases_of_a_client_that_stops_are_released_at_once(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    """When the client stops, messages that it has not seen yet are on their way to it."""
    create_topic_and_subscription()
    publish(publisher, [str(number) for number in range(100)])
    first = pubsub_v1.types.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600)
    has_ended = threading.Event()

    def requests() -> Iterator[pubsub_v1.types.StreamingPullRequest]:
        yield first
        has_ended.wait(60)

    responses = subscriber.streaming_pull(requests=requests())
    assert next(iter(responses)).received_messages
    responses.cancel()
    has_ended.set()
    collector = Collector(100)
    stream(subscriber, collector)
    assert len(set(collector.texts)) == 100


def test_acknowledgements_of_exactly_once_delivery_are_confirmed(
    publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient
) -> None:
    create_topic_and_subscription(enableExactlyOnceDelivery=True)
    publish(publisher, [str(number) for number in range(20)])
    futures: list[Any] = []
    collector = Collector(20, lambda message: futures.append(message.ack_with_response()))
    future = subscriber.subscribe(SUBSCRIPTION, callback=collector)
    assert collector.done.wait(30)
    assert [response.result(timeout=30) for response in futures] == [AcknowledgeStatus.SUCCESS] * 20
    acked = collector.messages[0]
    default_backlog().forget(Lane(Subscription.objects.get().pk, "local"))  # which ends all leases
    with pytest.raises(AcknowledgeError) as caught:
        acked.ack_with_response().result(timeout=60)
    assert caught.value.error_code is AcknowledgeStatus.INVALID_ACK_ID
    future.cancel()
    future.result(timeout=30)


def test_a_missing_subscription_ends_the_stream_with_its_error(subscriber: pubsub_v1.SubscriberClient) -> None:
    future = subscriber.subscribe("projects/shop/subscriptions/missing", callback=print)
    with pytest.raises(exceptions.NotFound, match=r"Resource not found \(resource=missing\)"):
        future.result(timeout=30)


def test_a_push_subscription_cannot_be_streamed(subscriber: pubsub_v1.SubscriberClient) -> None:
    create_topic_and_subscription(pushConfig={"pushEndpoint": "https://example.com/push"})
    future = subscriber.subscribe(SUBSCRIPTION, callback=print)
    with pytest.raises(exceptions.FailedPrecondition):
        future.result(timeout=30)


def test_the_node_client_publishes_in_order_and_streams(node: Node) -> None:
    create_topic_and_subscription(enableMessageOrdering=True)
    messages = [{"data": f"m{number}", "attributes": {"n": str(number)}, "orderingKey": "k"} for number in range(20)]
    ids = node.act("publish", topic=TOPIC, messages=messages, ordering=True)["ids"]
    assert len(set(ids)) == 20
    received = node.act("stream", subscription=SUBSCRIPTION, count=20)["received"]
    assert [message["data"] for message in received] == [f"m{number}" for number in range(20)]
    assert received[3]["attributes"] == {"n": "3"}
    wait_for(nothing_left, what="the acknowledgements")


def test_the_node_client_gets_nacked_messages_again(node: Node) -> None:
    create_topic_and_subscription()
    node.act("publish", topic=TOPIC, messages=[{"data": str(number)} for number in range(500)], ordering=False)
    received = node.act("stream", subscription=SUBSCRIPTION, count=500, nacks=7, maxMessages=50)["received"]
    assert {message["data"] for message in received} == {str(number) for number in range(500)}
    wait_for(nothing_left, what="the acknowledgements")


def test_the_node_client_confirms_exactly_once_delivery(node: Node) -> None:
    create_topic_and_subscription(enableExactlyOnceDelivery=True)
    node.act("publish", topic=TOPIC, messages=[{"data": str(number)} for number in range(20)], ordering=False)
    received = node.act("stream", subscription=SUBSCRIPTION, count=20)["received"]
    assert {message["data"] for message in received} == {str(number) for number in range(20)}
    wait_for(nothing_left, what="the acknowledgements")
