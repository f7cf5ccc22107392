"""Message transforms of a subscription: what is pushed, pulled and filtered, and what follows a failure."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.db import connection

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.pull import transforms
from deliveries.push.single import deliver_one
from deliveries.rules.taskmessage import DeliverTask, reference
from subscriptions.models import Subscription
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
LETTERS = "projects/shop/topics/letters"
CODE = """
    function shape(message, metadata) {
        if (message.data.startsWith("drop")) return null;
        if (message.data.startsWith("fail")) throw new Error("cannot " + message.data);
        message.attributes.id = metadata.message_id;
        message.attributes.at = metadata.publish_time;
        return {data: message.data.toUpperCase(), attributes: message.attributes};
    }
"""
TRANSFORMS = [{"javascriptUdf": {"functionName": "shape", "code": CODE}}]
POLICY = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}
QUICK = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    api.create("topics/letters")
    api.create("subscriptions/letters", {"topic": LETTERS})
    return api


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a message whose function failed be due again at once."""
    monkeypatch.setattr(transforms, "FAILED_COUNTDOWN_MS", (0, 0))


def subscribe(api: Api, **fields: Any) -> None:
    api.create("subscriptions/worker", {"topic": TOPIC, "messageTransforms": TRANSFORMS, **fields})


def publish(api: Api, *texts: str, **fields: Any) -> list[str]:
    messages = [{"data": base64.b64encode(text.encode()).decode(), **fields} for text in texts]
    ids: list[str] = api.post("topics/orders:publish", {"messages": messages}).body["messageIds"]
    return ids


def pulled(api: Api, name: str = "worker") -> list[dict[str, Any]]:
    body = {"maxMessages": 100, "returnImmediately": True}
    received: list[dict[str, Any]] = api.post(f"subscriptions/{name}:pull", body).body.get("receivedMessages", [])
    return received


def texts(received: list[dict[str, Any]]) -> list[str]:
    return [base64.b64decode(entry["message"]["data"]).decode() for entry in received]


def owed(name: str = "worker") -> int:
    return Delivery.objects.filter(subscription__subscription_id=name).count()


def test_pulled_messages_are_transformed(api: Api) -> None:
    subscribe(api)
    [first, _] = publish(api, "one", "two", attributes={"a": "b"}, orderingKey="k")

    received = pulled(api)

    assert texts(received) == ["ONE", "TWO"]
    message = received[0]["message"]
    assert message["attributes"] == {"a": "b", "id": first, "at": message["publishTime"][:19] + "Z"}
    assert (message["messageId"], message["orderingKey"]) == (first, "k")


def test_filtered_messages_count_as_acknowledged(api: Api) -> None:
    subscribe(api)
    publish(api, *["drop"] * 150, "keep", "drop")

    # A pull ends after a while even if all messages so far were filtered.
    received = wait_for(lambda: pulled(api), what="a message that is kept")

    assert texts(received) == ["KEEP"]
    assert owed() == 1


@pytest.mark.usefixtures("soon")
def test_a_failed_pull_is_a_nack_and_ends_as_a_dead_letter(api: Api) -> None:
    subscribe(api, deadLetterPolicy=POLICY, retryPolicy=QUICK)
    publish(api, "fail", "fine")

    assert texts(pulled(api)) == ["FINE"]
    wait_for(lambda: not pulled(api) and owed() == 1, what="the dead letter")

    [letter] = pulled(api, "letters")
    assert texts([letter]) == ["fail"]
    assert letter["message"]["attributes"]["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_a_failed_message_is_not_due_at_once(api: Api) -> None:
    subscribe(api)
    publish(api, "fail")

    assert pulled(api) == []
    row = Subscription.objects.get(subscription_id="worker")
    client = default_backlog().client
    [(_, due_ms)] = client.zrange(f"{Lane(row.pk, 'local').root}:z", 0, -1, withscores=True)
    seconds, microseconds = client.time()
    assert due_ms > seconds * 1000 + microseconds // 1000


@pytest.mark.usefixtures("soon")
def test_in_order_a_failure_holds_back_the_later_messages_of_its_key(api: Api) -> None:
    subscribe(api, enableMessageOrdering=True)
    publish(api, "one", "drop", "fail", "three", orderingKey="k")
    publish(api, "other", orderingKey="o")

    received = pulled(api)
    assert texts(received) == ["ONE", "OTHER"]
    ack_ids = [entry["ackId"] for entry in received]
    assert api.post("subscriptions/worker:acknowledge", {"ackIds": ack_ids}).status == 200
    assert owed() == 2

    fixed = {"javascriptUdf": {"functionName": "f", "code": "function f(m) { return m; }"}}
    patch = {"subscription": {"messageTransforms": [fixed]}, "updateMask": "messageTransforms"}
    assert api.patch("subscriptions/worker", patch).status == 200
    later: list[str] = []
    wait_for(lambda: later.extend(texts(pulled(api))) or len(later) >= 2, what="the held messages")
    assert later == ["fail", "three"]


def test_exactly_once_and_in_order_a_filtered_message_waits_for_no_earlier_one(api: Api) -> None:
    """It would come again a minute after the earlier ones, and the later leases of its key would end."""
    subscribe(api, enableMessageOrdering=True, enableExactlyOnceDelivery=True)
    publish(api, "one", "drop", "three", orderingKey="k")

    received = pulled(api)
    assert texts(received) == ["ONE", "THREE"]
    assert owed() == 2
    assert api.post("subscriptions/worker:acknowledge", {"ackIds": [received[0]["ackId"]]}).status == 200
    row = Subscription.objects.get(subscription_id="worker")
    leases = default_backlog().client.zrange(f"{Lane(row.pk, 'local').root}:l", 0, -1)
    assert [int(name) for name in leases] == [int(received[1]["message"]["messageId"])]


def test_messages_that_the_time_does_not_suffice_for_are_released(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "TRANSFORM_SECONDS", 0.0)
    subscribe(api, deadLetterPolicy=POLICY)
    publish(api, "one", "two", "three")

    pulls = [pulled(api) for _ in range(3)]

    assert [texts(messages) for messages in pulls] == [["ONE"], ["TWO"], ["THREE"]]
    assert [messages[0]["deliveryAttempt"] for messages in pulls] == [1, 1, 1]


def test_a_message_that_grows_too_large_for_the_pull_is_released(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    grow = {"javascriptUdf": {"functionName": "f", "code": 'const f = m => ({data: m.data + "x".repeat(6e6)});'}}
    subscribe(api, messageTransforms=[grow])
    publish(api, "1", "2")

    assert [[text[0] for text in texts(pulled(api))] for _ in range(2)] == [["1"], ["2"]]


def test_pushed_messages_are_transformed_filtered_and_nacked(api: Api, redis_url: str) -> None:
    with Receiver(default=204) as receiver, Worker(redis_url):
        config = {"pushEndpoint": receiver.url}
        subscribe(api, pushConfig=config, deadLetterPolicy=POLICY, retryPolicy=QUICK)
        large = "x" * 70_000
        publish(api, "one", "drop", "fail", large, attributes={"a": "b"})

        requests = receiver.wait(2)
        wait_for(lambda: not owed(), what="every delivery to end")

    bodies = {base64.b64decode(request.json["message"]["data"]).decode() for request in requests}
    assert bodies == {"ONE", large.upper()}
    assert requests[0].json["message"]["attributes"].keys() == {"a", "id", "at"}
    [letter] = pulled(api, "letters")
    assert texts([letter]) == ["fail"]
    assert letter["message"]["attributes"]["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_each_attempt_is_transformed_again_and_the_stored_message_stays(api: Api, redis_url: str) -> None:
    with Receiver(default=204) as receiver, Worker(redis_url):
        receiver.script([503])
        subscribe(api, pushConfig={"pushEndpoint": receiver.url, "noWrapper": {}}, retryPolicy=QUICK)
        publish(api, "one")

        requests = receiver.wait(2)

    assert [request.body for request in requests] == [b"ONE", b"ONE"]


@pytest.mark.parametrize(
    ("text", "result", "sent"),
    [("one", "ack 204", ["T05F"]), ("drop", "drop filter", []), ("fail", "nack transform_failed", [])],
)
def test_a_stock_worker_transforms_too(api: Api, receiver: Receiver, text: str, result: str, sent: list[str]) -> None:
    subscribe(api, pushConfig={"pushEndpoint": receiver.url})
    [message_id] = publish(api, text)
    row = Subscription.objects.get(subscription_id="worker")

    task = DeliverTask(row.pk, "local", 1, reference(int(message_id)))
    [attempt] = deliver_one(task, task_id=f"{message_id}.{row.pk}.local").attempts
    assert f"{attempt.verdict} {attempt.result_text}" == result
    assert [request.json["message"]["data"] for request in receiver.requests] == sent
    assert owed() == (result.startswith("nack"))
    connection.close()
