"""A poison message that blocks its ordering key is named, and an operator dead-letters or skips it."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.contrib.auth.models import User

from deliveries.models import DeadLetter, Delivery, Message
from subscriptions.cli import main as cli
from subscriptions.models import Subscription, Topic
from subscriptions.models.iam import AuditEntry
from tests.integration.deadletters.letters import pull_messages
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api, root_client
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
NAME = "projects/shop/subscriptions/worker"
POISON = "cG9pc29u"


def refuse_poison(request: Request) -> int:
    return 500 if request.json["message"]["data"] == POISON else 204


def poisoned(api: Api, receiver: Receiver, **fields: Any) -> tuple[str, str]:
    """Return the ids of a message that the endpoint refuses, and of one behind it."""
    receiver.default = refuse_poison
    api.create("topics/orders")
    config = {"pushConfig": {"pushEndpoint": receiver.url}, "enableMessageOrdering": True}
    api.create("subscriptions/worker", {"topic": TOPIC, **config, **fields})
    messages = [{"data": data, "orderingKey": "k"} for data in (POISON, base64.b64encode(b"good").decode())]
    first, second = api.post("topics/orders:publish", {"messages": messages}).body["messageIds"]
    return first, second


def refused(message_id: str, *, times: int = 3) -> Any:
    return lambda: Delivery.objects.filter(message=message_id, attempts__gte=times).exists()


def test_a_poison_message_is_named_and_skipped_and_the_next_one_of_its_key_goes_out(
    redis_url: str, receiver: Receiver, live_server: Any, capsys: Any
) -> None:
    api = Api()
    first, second = poisoned(api, receiver)
    with Worker(redis_url):
        wait_for(refused(first))
        [step] = [
            row for row in api.post("subscriptions/worker:diagnose", {}).body["steps"] if row["name"] == "ordering"
        ]
        assert (step["status"], step["messageId"]) == ("warning", first)
        assert "the last with 500. Later messages of its ordering key wait for it: 1." in step["message"]
        [behind] = api.get(f"messages/{second}").body["deliveries"]
        assert behind["blockedByMessageId"] == first
        assert f"waits for the message {first}, which comes before it" in behind["reason"]
        options = ["--subscription", "worker", "--project", "shop", "--url", live_server.url, "--quiet"]
        assert cli.main(["messages", "skip", first, *options]) == 0
        wait_for(lambda: not Delivery.objects.exists(), what="the message behind it")
    assert "Skipped 1 of the messages" in capsys.readouterr().err
    assert [request.json["message"]["messageId"] for request in receiver.requests][-1] == second
    entry = AuditEntry.objects.get(action="SkipMessages")
    assert (entry.resource, entry.after) == (NAME, {"messages": 1, "messageIds": [first]})
    assert api.post("subscriptions/worker:skipMessages", {"messageIds": [first]}).body == {"messages": 0}
    assert api.post("subscriptions/worker:skipMessages", {}).fields == ["messageIds"]


def test_a_poison_message_is_dead_lettered_before_its_last_attempt(redis_url: str, receiver: Receiver) -> None:
    api = Api()
    api.create("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 100}
    first, _ = poisoned(api, receiver, deadLetterPolicy=policy)
    with Worker(redis_url):
        wait_for(refused(first))
        client = root_client()
        page = client.get(f"/admin/deliveries/message/way/{first}/")
        assert page.context["ways"][0]["settle"]["can_dead_letter"]
        address = f"/admin/deliveries/message/settle/{first}/"
        client.post(address, {"do": "dead_letter", "subscription": Subscription.objects.get().pk})
        wait_for(lambda: not Delivery.objects.exists(), what="the message behind it")
    letter = DeadLetter.objects.get()
    assert (str(letter.source_id), letter.result) == (first, "500") and letter.attempts >= 3


def test_a_pulled_message_that_is_dead_lettered_by_hand_tells_its_attempts(api: Api, redis_url: str) -> None:
    api.create("topics/orders")
    api.create("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    api.create("subscriptions/worker", {"topic": TOPIC, "deadLetterPolicy": policy})
    [message_id] = api.post("topics/orders:publish", {"messages": [{"data": POISON}]}).body["messageIds"]
    for _ in range(3):
        [received] = pull_messages(api, "worker")
        body = {"ackIds": [received["ackId"]], "ackDeadlineSeconds": 0}
        api.post("subscriptions/worker:modifyAckDeadline", body)
    assert api.post("subscriptions/worker:deadLetterMessages", {"messageIds": [message_id]}).body == {"messages": 1}
    assert DeadLetter.objects.get().attempts == 3
    assert '"CloudPubSubDeadLetterSourceDeliveryCount":"3"' in Message.objects.latest("pk").attributes


def test_in_a_region_that_the_topic_excludes_nothing_is_dead_lettered(redis_url: str, receiver: Receiver) -> None:
    api = Api()
    api.create("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 100}
    first, _ = poisoned(api, receiver, deadLetterPolicy=policy)
    elsewhere = {"allowedPersistenceRegions": ["elsewhere"], "enforceInTransit": True}
    Topic.objects.filter(topic_id="dead").update(message_storage_policy=elsewhere)
    answer = api.post("subscriptions/worker:deadLetterMessages", {"messageIds": [first]})
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert "not allowed in the region local" in answer.error["message"]


def test_without_a_dead_letter_topic_nothing_is_dead_lettered_and_skipping_is_confirmed_first(
    redis_url: str, receiver: Receiver
) -> None:
    api = Api()
    first, _ = poisoned(api, receiver)
    answer = api.post("subscriptions/worker:deadLetterMessages", {"messageIds": [first]})
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    client = root_client()
    address = f"/admin/deliveries/message/settle/{first}/"
    skip = {"do": "skip", "subscription": str(Subscription.objects.get().pk)}
    assert "Nobody delivers it again." in client.post(address, skip).content.decode()
    assert Delivery.objects.count() == 2
    client.post(address, skip | {"confirmed": "yes"})
    assert Delivery.objects.count() == 1
    client.force_login(User.objects.create(username="ada", email="ada@example.com", is_staff=True))
    assert client.post(address, skip | {"confirmed": "yes"}).status_code in (403, 404)
