"""Seeks while messages are outstanding: no attempt that began before a seek undoes it (docs/spec-messages.md#seek)."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.deadletters.forwarding import forward_dead_letters, usable_topic_id
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.push.results.settler import settle_now
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.ids import first_id_at
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import parse_body, parse_own
from deliveries.store import statements
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.integration.retention.test_snapshots import api as api
from tests.integration.retention.test_snapshots import publish, received, seek, subscribe, taken
from tests.lanes import low_queue
from tests.ports import wait_for
from tests.receiver import Answer, Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
PAST, FUTURE = "1970-01-01T00:00:00Z", "9999-01-01T00:00:00Z"
ENDPOINT = {"pushEndpoint": "http://127.0.0.1:1024/"}


def ack(api: Api, ack_ids: list[str]) -> Any:
    return api.post("subscriptions/worker:acknowledge", {"ackIds": ack_ids})


def ack_ids_of(messages: list[Any]) -> list[str]:
    return [message["ackId"] for message in messages]


@pytest.mark.parametrize("fields", [{}, {"enableMessageOrdering": True}, {"retainAckedMessages": True}])
def test_an_ack_id_of_before_a_seek_acknowledges_nothing(api: Api, fields: dict[str, Any]) -> None:
    subscribe(api, **fields)
    publish(api, "a", "b", **({"orderingKey": "k"} if "enableMessageOrdering" in fields else {}))
    before = ack_ids_of(received(api))
    seek(api, time=PAST)
    assert ack(api, before).status == 200
    assert taken(api) == ["a", "b"]
    assert not Delivery.objects.exists()


def test_with_exactly_once_delivery_an_ack_id_of_before_a_seek_is_refused(api: Api) -> None:
    subscribe(api, enableExactlyOnceDelivery=True)
    publish(api, "a")
    before = ack_ids_of(received(api))
    seek(api, time=PAST)
    now = ack_ids_of(received(api))
    assert ack(api, before).error["status"] == "INVALID_ARGUMENT"
    assert ack(api, now).status == 200
    assert not Delivery.objects.exists()


def test_an_ack_that_is_stored_before_the_seek_does_not_undo_it(api: Api) -> None:
    subscribe(api, retainAckedMessages=True)
    publish(api, "a", "b")
    ack(api, ack_ids_of(received(api))[:1])
    seek(api, time=PAST)
    assert taken(api) == ["a", "b"]


def delivery_of(api: Api) -> PushDelivery:
    """Return the one message that waits in the queue, as a worker that has fetched it holds it."""
    message: bytes = default_backlog().client.rpop(low_queue("local"))
    parts = parse_own(message)
    assert parts is not None
    task = parse_body(parts[1])
    lane = Lane(task.subscription_id, "local")
    return PushDelivery(task, parts[0], batch=None, lane=lane, finish=lambda _: None)


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.DROP, Verdict.NACK])
@pytest.mark.parametrize("seeks", [[PAST], [PAST, PAST], [FUTURE, PAST]], ids=["back", "back twice", "there and back"])
def test_a_result_of_an_attempt_before_a_seek_settles_nothing(api: Api, seeks: list[str], verdict: Verdict) -> None:
    # Given a message that a worker pushes since before a seek
    subscribe(api, pushConfig=ENDPOINT, retainAckedMessages=True)
    publish(api, "a")
    delivery = delivery_of(api)
    for moment in seeks:
        seek(api, time=moment)
    # When its result is settled
    delivery.settle_as(verdict)
    settle_now([delivery])
    # Then the delivery waits for its first attempt
    [delivery] = Delivery.objects.all()
    assert (delivery.attempts, delivery.last_result, delivery.last_attempt_at) == (0, "", None)


def test_the_attempts_after_a_seek_settle_its_deliveries(api: Api) -> None:
    """Whether they are pushed or pulled, nacked first or acked at once, and after another seek as well."""
    subscribe(api)
    publish(api, "a")
    for _ in range(2):
        seek(api, time=PAST)
        [message] = received(api)
        api.post("subscriptions/worker:modifyAckDeadline", {"ackIds": [message["ackId"]], "ackDeadlineSeconds": 0})
    assert taken(api) == ["a"]
    assert not Delivery.objects.exists()


def test_the_last_attempt_before_a_seek_makes_no_dead_letter(api: Api) -> None:
    api.create("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
    subscribe(api, deadLetterPolicy=policy)
    publish(api, "a")
    row, [delivery] = Subscription.objects.get(), Delivery.objects.all()
    seek(api, time=PAST)
    attempts = {delivery.message_id: 5}
    letter = {"subscription_id": row.pk, "region": "local", "topic_id": usable_topic_id(row.pk)}
    assert not forward_dead_letters(**letter, attempts=attempts).message_ids
    number = Delivery.objects.get().seek
    forwarded = forward_dead_letters(**letter, attempts=attempts, seek=number)
    assert forwarded.message_ids == {delivery.message_id}


def test_messages_with_ids_ahead_of_the_clock_are_replayed(api: Api) -> None:
    """Another host's clock may be two minutes fast."""
    subscribe(api, retainAckedMessages=True)
    row = Subscription.objects.get()
    ahead = first_id_at(int(time.time() * 1000) + 120_000)
    statements.insert_messages([(ahead, row.topic_id, "local", b"ahead", "", "")])
    seek(api, time=PAST)
    assert taken(api) == ["ahead"]


def test_no_seek_in_traffic_is_undone(api: Api, receiver: Receiver, redis_url: str) -> None:
    """Each message comes again after the last seek, although acks of attempts before it arrive after it."""
    dice = random.Random(1)
    receiver.default = lambda _: Answer(delay_seconds=dice.uniform(0, 0.3))
    subscribe(api, pushConfig={"pushEndpoint": receiver.url}, retainAckedMessages=True)
    subscribe(api, "pulled", retainAckedMessages=True)
    topic = get_topic(name=TOPIC)
    with Worker(redis_url):
        publish_message(topic=topic, messages=[NewMessage(b"x", {}, "")] * 100)
        pulled = ack_ids_of(received(api, "pulled"))
        receiver.wait(10)
        seek_both(api, PAST, pulled)
        receiver.wait(len(receiver.requests) + 10)
        seek_both(api, FUTURE, pulled)
        before = len(receiver.requests)
        seek_both(api, PAST, pulled)
        wait_for(lambda: not waiting("worker"), what="the acks after the seek")
    after = {request.json["message"]["messageId"] for request in receiver.requests[before:]}
    assert len(after) == 100
    assert len(received(api, "pulled")) == 100


def seek_both(api: Api, moment: str, ack_ids: list[str]) -> None:
    """Seek the pushed and the pulled subscription, and acknowledge leases of before that."""
    seek(api, time=moment)
    seek(api, "pulled", time=moment)
    assert api.post("subscriptions/pulled:acknowledge", {"ackIds": ack_ids}).status == 200


def waiting(name: str) -> bool:
    return Delivery.objects.filter(subscription__subscription_id=name).exists()
