"""A pull is bounded in bytes as well: messages that do not fit are released as if they had never been leased."""

from __future__ import annotations

from typing import Any

import pytest

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.pull.leasing import Received, pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.rpc.streams import MOST_AT_ONCE, NO_LIMIT, Outstanding
from deliveries.rules.payload import NewMessage, wire_message, wire_size
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC, DEAD = "projects/shop/topics/orders", "projects/shop/topics/dead"
NAME = "projects/shop/subscriptions/puller"
MB = 1_000_000


@pytest.fixture(autouse=True)
def topics(redis_url: str) -> None:
    create_topic(name=TOPIC, topic={})
    create_topic(name=DEAD, topic={})


def subscribe(**fields: Any) -> Subscription:
    return create_subscription(name=NAME, subscription={"topic": TOPIC, **fields})


def publish(count: int, size: int, *, key: str = "") -> list[str]:
    topic = get_topic(name=TOPIC)
    return [
        message_id
        for number in range(count)
        for message_id in publish_message(topic=topic, messages=[NewMessage(bytes([number % 256]) * size, {}, key)])
    ]


def ids(received: list[Received]) -> list[str]:
    return [entry.message["messageId"] for entry in received]


def test_a_pull_returns_no_more_than_ten_megabytes() -> None:
    subscription = subscribe()
    published = publish(5, 3 * MB)
    assert ids(pull_messages(subscription=subscription, max_messages=100)) == published[:3]
    assert ids(pull_messages(subscription=subscription, max_messages=100)) == published[3:]


def test_small_messages_count_with_their_bytes_too() -> None:
    subscription = subscribe()
    publish(40, 60_000)
    received = pull_messages(subscription=subscription, max_messages=100, max_bytes=10 * 60_000)
    assert len(received) == 10
    assert sum(message.size for message in received) == 10 * 60_000


def test_a_message_that_is_too_large_comes_alone() -> None:
    subscription = subscribe()
    published = publish(2, 2 * MB)
    for message_id in published:
        assert ids(pull_messages(subscription=subscription, max_messages=9, max_bytes=MB)) == [message_id]


def test_a_message_that_was_released_counts_no_attempt() -> None:
    subscription = subscribe(deadLetterPolicy={"deadLetterTopic": DEAD, "maxDeliveryAttempts": 5})
    published = publish(8, MB)
    seen: list[str] = []
    for _ in published:
        [received] = pull_messages(subscription=subscription, max_messages=9, max_bytes=MB)
        assert received.delivery_attempt == 1
        acknowledge_messages(subscription=subscription, ack_ids=[received.ack_id])
        seen += ids([received])
    assert seen == published
    assert not Delivery.objects.exists()


def test_messages_of_an_ordering_key_keep_their_order() -> None:
    subscription = subscribe(enableMessageOrdering=True)
    published = publish(4, 2 * MB, key="k")
    seen: list[str] = []
    while len(seen) < len(published):
        received = pull_messages(subscription=subscription, max_messages=9, max_bytes=3 * MB)
        assert received
        acknowledge_messages(subscription=subscription, ack_ids=[message.ack_id for message in received])
        seen += ids(received)
    assert seen == published


def test_a_lease_holds_while_others_of_its_pull_were_given_back() -> None:
    subscription = subscribe(enableExactlyOnceDelivery=True)
    publish(3, 2 * MB)
    first = pull_messages(subscription=subscription, max_messages=9, max_bytes=2 * MB)
    rest = pull_messages(subscription=subscription, max_messages=9)
    assert (len(first), len(rest)) == (1, 2)
    acknowledge_messages(subscription=subscription, ack_ids=[message.ack_id for message in first + rest])
    assert not Delivery.objects.exists()


def test_a_stream_has_room_for_the_bytes_that_its_client_allows() -> None:
    outstanding = Outstanding(max_messages=0, max_bytes=1000)
    assert outstanding.room() == (MOST_AT_ONCE, 1000)
    outstanding.sent("a", 700, 1)
    assert outstanding.room() == (MOST_AT_ONCE, 300)
    outstanding.sent("b", 700, 1)
    assert outstanding.room() == (0, 0)
    outstanding.gone(["a"])
    assert outstanding.room() == (MOST_AT_ONCE, 300)


def test_a_stream_has_room_for_the_messages_that_its_client_allows() -> None:
    outstanding = Outstanding(max_messages=2, max_bytes=0)
    outstanding.sent("a", 1, 1)
    assert outstanding.room()[0] == 1
    outstanding.sent("b", 1, 1)
    assert outstanding.room() == (0, 0)
    assert Outstanding(max_messages=0, max_bytes=0).room()[0] == min(MOST_AT_ONCE, NO_LIMIT)


def test_a_message_is_as_large_as_its_data_attributes_and_key() -> None:
    assert wire_size(wire_message(1, b"12345", {"ab": "cde"}, "k")) == 5 + 5 + 1
    assert wire_size(wire_message(1, b"", {}, "")) == 0
