"""The fields of messages, of publishing and of pulling."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest
from google.api_core import exceptions

from tests.compatibility.fields.trials import SUBSCRIPTION, TOPIC, Shop, seconds_left, tries


@tries("PublishRequest", "topic", "messages")
@tries("PublishResponse", "messageIds")
@tries("PubsubMessage", "data", "attributes", "messageId", "publishTime", "orderingKey")
@tries("PullRequest", "subscription", "maxMessages")
@tries("PullResponse", "receivedMessages")
@tries("ReceivedMessage", "ackId", "message")
@tries("AcknowledgeRequest", "subscription", "ackIds")
def test_a_message_arrives_as_it_was_published_until_it_is_acknowledged(shop: Shop) -> None:
    shop.subscription()
    before = datetime.now(UTC)
    messages = [{"data": b"one", "attributes": {"a": "b"}, "ordering_key": "k"}, {"data": b"two", "ordering_key": "k"}]
    message_ids = list(shop.publisher.publish({"topic": TOPIC, "messages": messages}).message_ids)
    with pytest.raises(exceptions.NotFound):
        shop.publisher.publish({"topic": TOPIC + "-2", "messages": messages})

    request = {"subscription": SUBSCRIPTION, "max_messages": 1}
    [first] = shop.subscriber.pull(request).received_messages
    [second] = shop.subscriber.pull(request).received_messages

    message = first.message
    assert (message.data, dict(message.attributes), message.ordering_key) == (b"one", {"a": "b"}, "k")
    assert [message.message_id, second.message.message_id] == message_ids
    assert before.timestamp() - 1 < message.publish_time.timestamp() < datetime.now(UTC).timestamp() + 1
    shop.subscriber.acknowledge({"subscription": SUBSCRIPTION, "ack_ids": [first.ack_id]})
    shop.nack([first, second])
    assert [again.message.data for again in shop.pull()] == [b"two"]


@tries("PullRequest", "returnImmediately")
def test_a_pull_waits_for_a_message_unless_return_immediately_is_set(shop: Shop) -> None:
    shop.subscription()
    request = {"subscription": SUBSCRIPTION, "max_messages": 1}
    assert shop.pull() == []
    payloads: list[bytes] = []

    def wait() -> None:
        answer = shop.subscriber.pull({**request, "return_immediately": False}, timeout=60)
        payloads.extend(received.message.data for received in answer.received_messages)

    waiting = threading.Thread(target=wait)
    waiting.start()
    shop.publish("late")
    waiting.join(timeout=60)
    assert payloads == [b"late"]


@tries("ModifyAckDeadlineRequest", "subscription", "ackIds", "ackDeadlineSeconds")
def test_an_ack_deadline_is_extended_and_a_deadline_of_0_nacks_the_message(shop: Shop) -> None:
    shop.subscription()
    shop.publish("x")
    [received] = shop.pull()
    request = {"subscription": SUBSCRIPTION, "ack_ids": [received.ack_id]}

    shop.subscriber.modify_ack_deadline({**request, "ack_deadline_seconds": 600})
    assert 500 < seconds_left("l") <= 600

    shop.subscriber.modify_ack_deadline({**request, "ack_deadline_seconds": 0})
    assert [redelivered.message.data for redelivered in shop.pull()] == [b"x"]
