"""The fields of subscriptions, of their policies and of their push configuration."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions

from deliveries import activity
from deliveries.models import Delivery, Message
from deliveries.retention import sweep
from deliveries.rules.ids import first_id_at
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from subscriptions.services.service_accounts import create_service_account
from tests.compatibility.fields.trials import SUBSCRIPTION, TOPIC, Shop, make_due, seconds_left, tries
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.workers import Worker

LETTERS = "projects/shop/topics/letters"
AT_ONCE = {"minimum_backoff": "0s", "maximum_backoff": "0s"}


@tries("Subscription", "name", "topic", "labels")
@tries("GetSubscriptionRequest", "subscription")
@tries("UpdateSubscriptionRequest", "subscription", "updateMask")
@tries("DeleteSubscriptionRequest", "subscription")
def test_a_subscription_is_created_changed_and_deleted(shop: Shop) -> None:
    shop.subscription(labels={"a": "1"}, ack_deadline_seconds=77)
    changed = {"name": SUBSCRIPTION, "labels": {"a": "2"}}

    shop.subscriber.update_subscription({"subscription": changed, "update_mask": "labels"})

    got = shop.subscriber.get_subscription({"subscription": SUBSCRIPTION})
    assert (got.name, got.topic, dict(got.labels)) == (SUBSCRIPTION, TOPIC, {"a": "2"})
    assert got.ack_deadline_seconds == 77
    shop.subscriber.delete_subscription({"subscription": SUBSCRIPTION})
    with pytest.raises(exceptions.NotFound):
        shop.subscriber.get_subscription({"subscription": SUBSCRIPTION})


@tries("Subscription", "ackDeadlineSeconds")
def test_a_lease_lasts_as_long_as_the_ack_deadline(shop: Shop) -> None:
    shop.subscription(ack_deadline_seconds=300)
    shop.publish("x")
    assert len(shop.pull()) == 1
    assert 200 < seconds_left("l") <= 300


@tries("Subscription", "retainAckedMessages")
def test_acknowledged_messages_are_kept_if_the_subscription_retains_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = utcnow() - timedelta(seconds=30)
    keeping = SUBSCRIPTION + "-keeping"
    shop.topic(TOPIC + "-kept")
    shop.subscription(retain_acked_messages=False)
    shop.subscription(keeping, topic=TOPIC + "-kept", retain_acked_messages=True)
    for name, topic in ((SUBSCRIPTION, TOPIC), (keeping, TOPIC + "-kept")):
        shop.publish("x", topic=topic)
        shop.ack(shop.pull(name), name)

    monkeypatch.setattr(sweep, "SETTLED_GRACE_MS", -1_000)
    assert sweep.sweep_settled() == 1

    for name, expected in ((SUBSCRIPTION, []), (keeping, [b"x"])):
        shop.subscriber.seek({"subscription": name, "time": start})
        assert [received.message.data for received in shop.pull(name)] == expected


@tries("Subscription", "messageRetentionDuration")
def test_a_message_is_owed_as_long_as_it_is_retained(shop: Shop) -> None:
    long = SUBSCRIPTION + "-long"
    shop.subscription(message_retention_duration="600s")
    shop.subscription(long, message_retention_duration="86400s")
    [message_id] = shop.publish("x")
    older = first_id_at(int(utcnow().timestamp() * 1000) - 3_600_000)
    Message.objects.filter(pk=message_id).update(id=older)
    Delivery.objects.update(message_id=older)

    sweep.sweep_expired()

    left = Delivery.objects.values_list("subscription_id", flat=True)
    assert list(left) == [Subscription.objects.get(subscription_id="worker-long").pk]


@tries("Subscription", "enableMessageOrdering")
def test_messages_of_an_ordering_key_arrive_in_order(shop: Shop) -> None:
    shop.subscription(enable_message_ordering=True, retry_policy=AT_ONCE)
    shop.publish("1", "2", "3", ordering_key="k")
    received: list[bytes] = []
    nacked = shop.pull(count=1)
    shop.nack(nacked)
    while len(received) < 3:
        batch = shop.pull(count=1)
        received += [entry.message.data for entry in batch]
        shop.ack(batch) if batch else None
    assert received == [b"1", b"2", b"3"]


@tries("Subscription", "expirationPolicy")
@tries("ExpirationPolicy", "ttl")
def test_an_idle_subscription_expires(shop: Shop) -> None:
    shop.subscription(expiration_policy={"ttl": "86400s"})
    shop.subscription(SUBSCRIPTION + "-2", expiration_policy={"ttl": f"{7 * 86400}s"})
    shop.subscription(SUBSCRIPTION + "-3", expiration_policy={})
    past = utcnow() - timedelta(days=3)
    Subscription.objects.update(active_at=past, updated_at=past)

    assert activity.delete_expired_subscriptions() == 1

    left = Subscription.objects.order_by("subscription_id").values_list("subscription_id", flat=True)
    assert list(left) == ["worker-2", "worker-3"]


@tries("Subscription", "filter")
def test_only_messages_that_match_the_filter_are_delivered(shop: Shop) -> None:
    shop.subscription(filter='attributes.kind = "new"')
    shop.publish("no", attributes={"kind": "old"})
    shop.publish("yes", attributes={"kind": "new"})
    assert [received.message.data for received in shop.pull()] == [b"yes"]


@tries("Subscription", "deadLetterPolicy")
@tries("DeadLetterPolicy", "deadLetterTopic", "maxDeliveryAttempts")
@tries("ReceivedMessage", "deliveryAttempt")
def test_a_message_goes_to_the_dead_letter_topic_after_its_last_attempt(shop: Shop) -> None:
    shop.topic(LETTERS)
    shop.subscription("projects/shop/subscriptions/letters", topic=LETTERS)
    dead_letter_policy = {"dead_letter_topic": LETTERS, "max_delivery_attempts": 6}
    shop.subscription(dead_letter_policy=dead_letter_policy, retry_policy=AT_ONCE)
    shop.publish("x")
    attempts: list[int] = []
    letters: list[Any] = []

    def is_dead_lettered() -> bool:
        received = shop.pull()
        attempts.extend(entry.delivery_attempt for entry in received)
        if received:
            shop.nack(received)
        letters.extend(shop.pull("projects/shop/subscriptions/letters"))
        return bool(letters)

    wait_for(is_dead_lettered, what="the dead letter")
    assert attempts == [1, 2, 3, 4, 5, 6]
    assert letters[0].message.data == b"x"


@tries("Subscription", "retryPolicy")
@tries("RetryPolicy", "minimumBackoff", "maximumBackoff")
def test_a_retry_waits_between_the_two_backoffs(shop: Shop) -> None:
    shop.subscription(retry_policy={"minimum_backoff": "200s", "maximum_backoff": "220s"})
    shop.publish("x")
    for _ in range(3):
        shop.nack(shop.pull())
        assert 100 < seconds_left("z") <= 220
        make_due("z")


@tries("Subscription", "detached")
@tries("DetachSubscriptionRequest", "subscription")
def test_a_detached_subscription_gets_nothing(shop: Shop) -> None:
    shop.subscription()
    shop.publisher.detach_subscription({"subscription": SUBSCRIPTION})
    assert shop.subscriber.get_subscription({"subscription": SUBSCRIPTION}).detached
    with pytest.raises(exceptions.FailedPrecondition, match="detached"):
        shop.pull()


@tries("Subscription", "enableExactlyOnceDelivery")
def test_with_exactly_once_delivery_a_late_acknowledgement_fails(shop: Shop) -> None:
    shop.subscription(enable_exactly_once_delivery=True)
    shop.subscription(SUBSCRIPTION + "-2")
    shop.publish("x")
    for name in (SUBSCRIPTION, SUBSCRIPTION + "-2"):
        received = shop.pull(name)
        make_due("l", name)
        if name == SUBSCRIPTION:
            with pytest.raises(exceptions.InvalidArgument):
                shop.ack(received, name)
        else:
            shop.ack(received, name)


@tries("ModifyPushConfigRequest", "subscription", "pushConfig")
def test_a_push_config_is_replaced(shop: Shop) -> None:
    shop.subscription(push_config={"push_endpoint": "https://shop.example/old"})
    push_config = {"push_endpoint": "https://shop.example/new"}
    shop.subscriber.modify_push_config({"subscription": SUBSCRIPTION, "push_config": push_config})
    got = shop.subscriber.get_subscription({"subscription": SUBSCRIPTION})
    assert got.push_config.push_endpoint == "https://shop.example/new"
    with pytest.raises(exceptions.FailedPrecondition, match="not supported for this subscription type"):
        shop.pull()
    shop.subscriber.modify_push_config({"subscription": SUBSCRIPTION, "push_config": {}})
    assert shop.pull() == []


@tries("Subscription", "pushConfig")
@tries("PushConfig", "pushEndpoint", "attributes", "oidcToken", "pubsubWrapper", "noWrapper")
@tries("OidcToken", "serviceAccountEmail", "audience")
@tries("NoWrapper", "writeMetadata")
def test_a_push_has_the_form_that_its_config_asks_for(shop: Shop, receiver: Receiver, redis_url: str) -> None:
    account = create_service_account(project="shop", request={"accountId": "pusher"}).email
    oidc_token = {"service_account_email": account, "audience": "the-shop"}
    configs: dict[str, Any] = {
        "wrapped": {"pubsub_wrapper": {}, "attributes": {"x-goog-version": "v1"}},
        "signed": {"oidc_token": oidc_token},
        "bare": {"no_wrapper": {}},
        "metadata": {"no_wrapper": {"write_metadata": True}},
    }
    for name, config in configs.items():
        push_config = {"push_endpoint": f"{receiver.url}/{name}", **config}
        shop.subscription(f"projects/shop/subscriptions/{name}", push_config=push_config)
    shop.publish("hello", attributes={"colour": "red"})
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")

    requests = {request.path.rpartition("/")[2]: request for request in receiver.requests}
    assert requests["wrapped"].json["message"]["attributes"] == {"colour": "red"}
    claims = _claims(requests["signed"])
    assert (claims["email"], claims["aud"]) == (account, "the-shop")
    assert "authorization" not in requests["wrapped"].headers
    assert requests["bare"].body == requests["metadata"].body == b"hello"
    assert "colour" not in requests["bare"].headers
    assert requests["metadata"].headers["colour"] == "red"
    with pytest.raises(exceptions.InvalidArgument, match="version"):
        shop.subscription("projects/shop/subscriptions/old", push_config={"attributes": {"x-goog-version": "v0"}})


def _claims(request: Request) -> dict[str, Any]:
    """Return the claims of a push's token without verifying it."""
    body = request.headers["authorization"].split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=="))
    return claims
