"""Dead letters: when a message goes to the dead-letter topic, with which attributes, and with whose permissions."""

from __future__ import annotations

import base64
from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError, connection
from django.test import override_settings

from deliveries.backlog.records import Lane
from deliveries.deadletters.forwarding import dead_letter_topic_usable, forward_dead_letters, usable_topic_id
from deliveries.models import Delivery, Message
from deliveries.push.results import settler, storing
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.payload import publish_time_text
from deliveries.rules.taskmessage import DeliverTask
from subscriptions.iam import access, grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity.agents import service_agent
from subscriptions.models import Project, Subscription
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
LETTERS = "projects/shop/topics/letters"
SUBSCRIPTION = "projects/shop/subscriptions/worker"
POLICY = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}
QUICK = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}


@pytest.fixture
def api(redis_url: str) -> Api:
    """Create a dead-letter topic `letters` with a pull subscription."""
    api = Api()
    api.create("topics/orders")
    api.create("topics/letters")
    api.create("subscriptions/letters", {"topic": LETTERS})
    return api


def publish(api: Api, text: str = "hello", **fields: Any) -> str:
    message = {"data": base64.b64encode(text.encode()).decode(), **fields}
    message_id: str = api.post("topics/orders:publish", {"messages": [message]}).body["messageIds"][0]
    return message_id


def pulled(api: Api, name: str) -> list[Any]:
    answer = api.post(f"subscriptions/{name}:pull", {"maxMessages": 10, "returnImmediately": True})
    received: list[Any] = answer.body.get("receivedMessages", [])
    return received


def nack(api: Api, name: str, received: list[Any]) -> None:
    body = {"ackIds": [message["ackId"] for message in received], "ackDeadlineSeconds": 0}
    assert api.post(f"subscriptions/{name}:modifyAckDeadline", body).status == 200


def letter(api: Api) -> Any:
    received: list[Any] = []
    wait_for(lambda: received.extend(pulled(api, "letters")) or received, what="the dead letter")
    (dead_letter,) = received
    return dead_letter["message"]


def pushed(api: Api, receiver: Receiver, **fields: Any) -> None:
    config = {"pushEndpoint": receiver.url}
    body = {"topic": TOPIC, "pushConfig": config, "deadLetterPolicy": POLICY, "retryPolicy": QUICK, **fields}
    api.create("subscriptions/worker", body)


def test_after_the_maximum_of_attempts_a_pushed_message_goes_to_the_dead_letter_topic(api: Api, redis_url: str) -> None:
    with Receiver(default=503) as receiver, Worker(redis_url):
        pushed(api, receiver)
        message_id = publish(api, "hello", attributes={"lang": "en"}, orderingKey="k")
        dead_letter = letter(api)
        assert [request.json["deliveryAttempt"] for request in receiver.requests] == [1, 2, 3, 4, 5]
    assert dead_letter["data"] == base64.b64encode(b"hello").decode()
    assert dead_letter["orderingKey"] == "k"
    assert dead_letter["messageId"] != message_id
    assert dead_letter["attributes"] == {
        "lang": "en",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "worker",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "shop",
        "CloudPubSubDeadLetterSourceTopicPublishTime": publish_time_text(int(message_id)),
    }
    assert not Delivery.objects.filter(subscription__subscription_id="worker").exists()


def test_a_large_message_goes_whole(api: Api, redis_url: str) -> None:
    text = "x" * 200_000
    with Receiver(default=503) as receiver, Worker(redis_url):
        pushed(api, receiver)
        publish(api, text)
        assert base64.b64decode(letter(api)["data"]).decode() == text


def test_a_message_acknowledged_in_time_is_no_dead_letter(api: Api, redis_url: str) -> None:
    with Receiver() as receiver, Worker(redis_url):
        receiver.script([503, 503, 503, 503, 204])
        pushed(api, receiver)
        publish(api)
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgement")
    assert pulled(api, "letters") == []
    assert len(receiver.requests) == 5


def test_a_key_goes_on_after_its_dead_letter(api: Api, redis_url: str) -> None:
    with Receiver() as receiver, Worker(redis_url):
        receiver.script([503] * 5)
        pushed(api, receiver, enableMessageOrdering=True)
        publish(api, "first", orderingKey="k")
        publish(api, "second", orderingKey="k")
        wait_for(lambda: len(receiver.requests) >= 6, what="the second message")
        dead_letter = letter(api)
        last = receiver.requests[-1].json["message"]
    assert base64.b64decode(dead_letter["data"]) == b"first"
    assert base64.b64decode(last["data"]) == b"second"


def test_a_pulled_message_counts_nacks_and_is_forwarded(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    publish(api)
    for attempt in range(1, 6):
        (received,) = pulled(api, "worker")
        assert received["deliveryAttempt"] == attempt
        nack(api, "worker", [received])
    assert pulled(api, "worker") == []
    assert letter(api)["attributes"]["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert not Delivery.objects.filter(subscription__subscription_id="worker").exists()
    assert pulled(api, "worker") == []


def test_without_a_policy_attempts_are_not_reported(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC})
    publish(api)
    (received,) = pulled(api, "worker")
    assert "deliveryAttempt" not in received


def test_attempts_are_always_reported_if_the_setting_asks_for_it(api: Api) -> None:
    """Metro reports attempts without a dead-letter policy too."""
    api.create("subscriptions/worker", {"topic": TOPIC})
    publish(api)
    with override_settings(DELIVERY_ATTEMPT_ALWAYS=True):
        (received,) = pulled(api, "worker")
        assert received["deliveryAttempt"] == 1
        nack(api, "worker", [received])
        assert pulled(api, "worker")[0]["deliveryAttempt"] == 2


def test_a_push_reports_its_attempt_if_the_setting_asks_for_it(api: Api, redis_url: str) -> None:
    with Receiver() as receiver, Worker(redis_url, PUSHHUB_DELIVERY_ATTEMPT_ALWAYS="on"):
        receiver.script([503])
        api.create("subscriptions/worker", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        publish(api)
        assert [request.json["deliveryAttempt"] for request in receiver.wait(2)] == [1, 2]


def test_a_deleted_dead_letter_topic_gets_no_messages_and_deliveries_go_on(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    api.delete("topics/letters")
    publish(api)
    for _ in range(8):
        received = pulled(api, "worker")
        assert len(received) == 1
        nack(api, "worker", received)
    assert api.get("subscriptions/worker").body["deadLetterPolicy"]["deadLetterTopic"] == "_deleted-topic_"


def test_a_dead_letter_topic_that_excludes_the_region_gets_no_messages_and_deliveries_go_on(api: Api) -> None:
    policy = {"allowedPersistenceRegions": ["eu"], "enforceInTransit": True}
    api.patch("topics/letters", {"topic": {"messageStoragePolicy": policy}, "updateMask": "messageStoragePolicy"})
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    publish(api)
    for _ in range(8):
        received = pulled(api, "worker")
        assert len(received) == 1
        nack(api, "worker", received)
    assert Message.objects.count() == 1


def test_outside_development_the_service_agent_needs_both_permissions(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    agent = service_agent(Project.objects.get()).member

    def usable() -> bool:
        access.forget_decisions()
        source = Subscription.objects.select_related("project", "dead_letter_topic__project").get(
            subscription_id="worker"
        )
        return dead_letter_topic_usable(source) is not None

    assert usable(), "policies apply in development too"
    with override_settings(DEVELOPMENT=False):
        assert not usable()
        grants.grant_role(get_resource(LETTERS), role="roles/pubsub.publisher", member=agent)
        assert not usable()
        grants.grant_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=agent)
        assert usable()
        grants.revoke_role(get_resource(LETTERS), role="roles/pubsub.publisher", member=agent)
        assert not usable()


def test_without_the_permissions_delivery_goes_on_for_ever(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    publish(api)
    with override_settings(DEVELOPMENT=False):
        subscriber = get_resource(SUBSCRIPTION)
        grants.grant_role(subscriber, role="roles/pubsub.subscriber", member="user:developer@localhost")
        for _ in range(8):
            received = pulled(api, "worker")
            assert len(received) == 1
            nack(api, "worker", received)
    assert Message.objects.count() == 1


def test_a_message_settled_elsewhere_meanwhile_is_not_forwarded(api: Api) -> None:
    """The settler tries again after a failure half-way; a deleted delivery must not become a second dead letter."""
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    message_id = int(publish(api))
    row = Subscription.objects.get(subscription_id="worker")
    letter = {"subscription_id": row.pk, "region": "local", "topic_id": usable_topic_id(row.pk)}
    first = forward_dead_letters(**letter, attempts={message_id: 5})
    again = forward_dead_letters(**letter, attempts={message_id: 5})
    assert (first.message_ids, again.message_ids) == ({message_id}, set())
    assert Message.objects.count() == 2


def test_messages_are_forwarded_in_their_publish_order(api: Api) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY, "enableMessageOrdering": True})
    ids = [int(publish(api, str(number), orderingKey="key")) for number in range(3)]
    # PostgreSQL puts a changed row behind all others.
    Message.objects.filter(pk=ids[0]).update(ordering_key="key")
    row = Subscription.objects.get(subscription_id="worker")
    forwarded = forward_dead_letters(
        subscription_id=row.pk, region="local", attempts=dict.fromkeys(ids, 5), topic_id=usable_topic_id(row.pk)
    )
    forwarded.announce_all()
    letters = [base64.b64decode(received["message"]["data"]) for received in pulled(api, "letters")]
    assert letters == [b"0", b"1", b"2"]


def test_permissions_are_looked_up_before_the_transaction_that_other_writers_wait_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a message at its last push, and a service agent that may forward it
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    agent = service_agent(Project.objects.get()).member
    grants.grant_role(get_resource(LETTERS), role="roles/pubsub.publisher", member=agent)
    grants.grant_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=agent)
    message_id, pk = publish(api), Subscription.objects.get(subscription_id="worker").pk
    delivery = PushDelivery(
        DeliverTask(pk, "local", 5, {"messageId": message_id}), "1", batch=None, lane=Lane(pk, "local"), finish=print
    )
    delivery.verdict = Verdict.NACK
    monkeypatch.setattr(storing, "_is_spent", lambda delivery: True)
    in_transactions = []
    allowed = access.allowed

    def observed(*arguments: Any) -> bool:
        in_transactions.append(connection.in_atomic_block)
        return allowed(*arguments)

    monkeypatch.setattr(access, "allowed", observed)
    # When it is settled
    with override_settings(DEVELOPMENT=False):
        settler.settle_now([delivery])
    # Then the permissions were looked up, outside of the transaction
    assert in_transactions == [False, False]
    assert delivery.verdict is Verdict.DEAD_LETTER


def test_a_dead_letter_that_cannot_be_offered_leaves_its_push_settled(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": POLICY})
    message_id, pk = publish(api), Subscription.objects.get(subscription_id="worker").pk
    lane = Lane(pk, "local")
    delivery = PushDelivery(
        DeliverTask(pk, "local", 5, {"messageId": message_id}), "1", batch=None, lane=lane, finish=print
    )
    delivery.verdict = Verdict.NACK
    monkeypatch.setattr(storing, "_is_spent", lambda delivery: True)
    monkeypatch.setattr("deliveries.deadletters.forwarding.offer_all", mock.Mock(side_effect=OperationalError))
    assert lane in settler.settle_now([delivery])
    assert delivery.verdict is Verdict.DEAD_LETTER
    monkeypatch.undo()
    assert pulled(api, "worker") == []
