"""The fields of StreamingPull."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import pytest
from google.api_core import exceptions

from deliveries.models import Delivery
from deliveries.pull.deadlines import give_back_leases, modify_ack_deadlines
from deliveries.pull.leases import read_ack_ids
from deliveries.pull.leasing import pull_messages
from subscriptions.selectors import get_subscription
from tests.compatibility.fields.trials import SUBSCRIPTION, TOPIC, Shop, make_due, seconds_left, tries
from tests.ports import wait_for


class Stream:
    """A stream that keeps its answers until the test asks for them."""

    def __init__(self, shop: Shop, **first: Any) -> None:
        self._requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.send(**{"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 60, **first})
        self._answers = shop.subscriber.streaming_pull(self._sent(), timeout=120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._requests.put(None)
        self._answers.cancel()

    def _sent(self) -> Iterator[Any]:
        from google.pubsub_v1 import StreamingPullRequest

        while (request := self._requests.get()) is not None:
            yield StreamingPullRequest(request)

    def send(self, **request: Any) -> None:
        self._requests.put(request)

    def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Return the next answer that matches; earlier answers are dropped."""
        return next(answer for answer in self._answers if wanted(answer))

    def received(self, count: int) -> list[Any]:
        messages: list[Any] = []
        while len(messages) < count:
            messages += self.until(lambda answer: bool(answer.received_messages)).received_messages
        return messages


@tries("StreamingPullRequest", "subscription", "streamAckDeadlineSeconds", "ackIds")
@tries("StreamingPullResponse", "receivedMessages", "subscriptionProperties")
@tries("SubscriptionProperties", "exactlyOnceDeliveryEnabled", "messageOrderingEnabled")
def test_a_stream_brings_messages_until_they_are_acknowledged(shop: Shop) -> None:
    shop.subscription(enable_message_ordering=True)
    with pytest.raises(exceptions.NotFound), Stream(shop, subscription=SUBSCRIPTION + "-2") as stream:
        stream.received(1)
    shop.publish("x")
    with Stream(shop, stream_ack_deadline_seconds=500) as stream:
        answer = stream.until(lambda answer: bool(answer.received_messages))
        properties = answer.subscription_properties
        assert (properties.exactly_once_delivery_enabled, properties.message_ordering_enabled) == (False, True)
        [first] = answer.received_messages
        assert 400 < seconds_left("l") <= 500
        stream.send(ack_ids=[first.ack_id])
        shop.publish("y")
        assert [second.message.data for second in stream.received(1)] == [b"y"]


@tries("StreamingPullRequest", "modifyDeadlineAckIds", "modifyDeadlineSeconds")
def test_a_stream_modifies_deadlines(shop: Shop) -> None:
    shop.subscription()
    shop.publish("x")
    with Stream(shop) as stream:
        [received] = stream.received(1)
        stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[600])
        wait_for(lambda: 500 < seconds_left("l") <= 600, what="the longer lease")
        stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[0])
        assert [redelivered.message.data for redelivered in stream.received(1)] == [b"x"]


def test_a_stream_that_ends_releases_the_messages_that_its_client_never_touched(shop: Shop) -> None:
    dead = f"{TOPIC}-dead"
    shop.topic(dead)
    shop.subscription(dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": 5})
    shop.publish("acknowledged", "extended", "untouched")
    with Stream(shop, stream_ack_deadline_seconds=300) as stream:
        ack_ids = {received.message.data: received.ack_id for received in stream.received(3)}
        stream.send(ack_ids=[ack_ids[b"acknowledged"]])
        stream.send(modify_deadline_ack_ids=[ack_ids[b"extended"]], modify_deadline_seconds=[600])
        wait_for(lambda: seconds_left("l") > 500, what="the longer lease")
    with Stream(shop, stream_ack_deadline_seconds=300) as stream:
        # The release costs no delivery attempt.
        [again] = stream.received(1)
        assert (again.message.data, again.delivery_attempt) == (b"untouched", 1)
        assert seconds_left("l") > 500, "the extended lease goes on"
        stream.send(ack_ids=[again.ack_id])
        wait_for(lambda: Delivery.objects.count() == 1, what="the acknowledgement")


@pytest.mark.parametrize("seconds", [20, 600])
def test_only_unused_leases_are_given_back(shop: Shop, seconds: int) -> None:
    subscription = get_subscription(name=shop.subscription().name)
    shop.publish("x")
    [first] = pull_messages(subscription=subscription, max_messages=1, lease_seconds=300)
    modify_ack_deadlines(subscription=subscription, ack_ids=[first.ack_id], seconds=seconds)
    give_back_leases(subscription=subscription, ends_ms={first.ack_id: first.ends_ms})
    assert pull_messages(subscription=subscription, max_messages=1) == []
    make_due("l")
    [second] = pull_messages(subscription=subscription, max_messages=1, lease_seconds=300)
    give_back_leases(subscription=subscription, ends_ms={first.ack_id: second.ends_ms})
    assert pull_messages(subscription=subscription, max_messages=1) == [], "ending an older lease releases nothing"
    give_back_leases(subscription=subscription, ends_ms={second.ack_id: second.ends_ms})
    [third] = pull_messages(subscription=subscription, max_messages=1)
    leases = read_ack_ids(subscription, [second.ack_id, third.ack_id])
    assert [lease.attempt for lease in leases] == [2, 2], "the released lease counts no attempt"


@tries("StreamingPullRequest", "maxOutstandingMessages", "maxOutstandingBytes")
def test_a_stream_has_no_more_messages_outstanding_than_its_client_allows(shop: Shop) -> None:
    shop.subscription()
    for max_outstanding_messages, max_outstanding_bytes in ((2, 0), (0, 2_500_000)):
        limits = {
            "max_outstanding_messages": max_outstanding_messages,
            "max_outstanding_bytes": max_outstanding_bytes,
        }
        with Stream(shop, **limits) as stream:
            shop.publish("x" * 1_000_000)
            first = stream.received(1)  # from which the server learns how large the messages are
            for _ in range(3):
                shop.publish("x" * 1_000_000)
            first += stream.received(1)
            others = shop.pull()
            assert others, "the stream holds everything"
            shop.nack(others)
            stream.send(ack_ids=[received.ack_id for received in first])
            rest: list[Any] = []
            while len(rest) < 2:
                rest += stream.received(1)
                stream.send(ack_ids=[received.ack_id for received in rest])


@tries("StreamingPullRequest", "protocolVersion")
def test_a_stream_of_protocol_1_answers_an_empty_request(shop: Shop) -> None:
    shop.subscription()
    with Stream(shop, protocol_version=1) as stream:
        stream.send()
        assert not stream.until(lambda answer: True).received_messages


@tries("StreamingPullResponse", "acknowledgeConfirmation", "modifyAckDeadlineConfirmation")
@tries("AcknowledgeConfirmation", "ackIds", "invalidAckIds")
@tries("ModifyAckDeadlineConfirmation", "ackIds", "invalidAckIds")
def test_with_exactly_once_delivery_a_stream_confirms_acknowledgements_and_deadlines(shop: Shop) -> None:
    shop.subscription(enable_exactly_once_delivery=True)
    shop.publish("x")
    with Stream(shop) as stream:
        [received] = stream.received(1)
        stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[90])
        modified = stream.until(lambda answer: "modify_ack_deadline_confirmation" in answer)
        assert list(modified.modify_ack_deadline_confirmation.ack_ids) == [received.ack_id]
        stream.send(ack_ids=[received.ack_id])
        acknowledged = stream.until(lambda answer: "acknowledge_confirmation" in answer)
        assert list(acknowledged.acknowledge_confirmation.ack_ids) == [received.ack_id]
        stream.send(ack_ids=[received.ack_id], modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[90])
        again = stream.until(lambda answer: "acknowledge_confirmation" in answer)
        assert list(again.acknowledge_confirmation.ack_ids) == [received.ack_id]
        late = stream.until(lambda answer: "modify_ack_deadline_confirmation" in answer)
        assert list(late.modify_ack_deadline_confirmation.invalid_ack_ids) == [received.ack_id]
        shop.publish("y")
        [nacked] = stream.received(1)
        stream.send(modify_deadline_ack_ids=[nacked.ack_id], modify_deadline_seconds=[0])
        stream.send(ack_ids=[nacked.ack_id])
        refused = stream.until(lambda answer: "acknowledge_confirmation" in answer)
        assert list(refused.acknowledge_confirmation.invalid_ack_ids) == [nacked.ack_id]
