"""Every official client runs the same cases, and gets the same answers and errors."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.compatibility.drivers import Driver, Refused
from tests.grpcservers import GrpcServer
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.workers import Worker

PROJECT = "projects/shop"
TOPIC = f"{PROJECT}/topics/orders"
SUBSCRIPTION = f"{PROJECT}/subscriptions/worker"
MISSING = f"{PROJECT}/topics/missing"


def data(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def refused(client: Driver, method: str, **request: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as error:
        client.call(method, **request)
    return error.value.code, error.value.message


@pytest.fixture
def topic(client: Driver) -> str:
    client.call("Publisher.CreateTopic", name=TOPIC)
    return TOPIC


@pytest.fixture
def subscription(client: Driver, topic: str) -> str:
    client.call("Subscriber.CreateSubscription", name=SUBSCRIPTION, topic=topic, ackDeadlineSeconds=60)
    return SUBSCRIPTION


def pull_messages(client: Driver, *, count: int) -> list[Any]:
    """Pull until there are exactly `count` messages, and return them."""
    received: list[Any] = []

    def has_all() -> bool:
        answer = client.call("Subscriber.Pull", subscription=SUBSCRIPTION, maxMessages=count - len(received))
        received.extend(answer.get("receivedMessages", []))
        return len(received) >= count

    wait_for(has_all, what=f"{count} messages")
    return received


def test_a_topic_is_created_changed_and_deleted(client: Driver) -> None:
    topic = client.call("Publisher.CreateTopic", name=TOPIC, labels={"team": "shop"})
    assert topic == {"name": TOPIC, "labels": {"team": "shop"}, "state": "ACTIVE"}
    assert client.call("Publisher.GetTopic", topic=TOPIC) == topic
    changed = client.call("Publisher.UpdateTopic", topic={"name": TOPIC, "labels": {"team": "b"}}, updateMask="labels")
    assert changed["labels"] == {"team": "b"}
    client.call("Publisher.DeleteTopic", topic=TOPIC)
    assert refused(client, "Publisher.GetTopic", topic=TOPIC)[0] == "NOT_FOUND"


def test_a_push_subscription_is_created_changed_and_deleted(client: Driver, topic: str) -> None:
    config = {"pushEndpoint": "https://example.com/push", "attributes": {"x-goog-version": "v1"}}
    created = client.call(
        "Subscriber.CreateSubscription",
        name=SUBSCRIPTION,
        topic=topic,
        pushConfig=config,
        ackDeadlineSeconds=20,
        retryPolicy={"minimumBackoff": "10s", "maximumBackoff": "600s"},
        messageRetentionDuration="1200s",
    )
    assert created["pushConfig"] == config
    assert (created["ackDeadlineSeconds"], created["messageRetentionDuration"]) == (20, "1200s")
    assert created["retryPolicy"] == {"minimumBackoff": "10s", "maximumBackoff": "600s"}
    update = {"name": SUBSCRIPTION, "ackDeadlineSeconds": 33}
    changed = client.call("Subscriber.UpdateSubscription", subscription=update, updateMask="ackDeadlineSeconds")
    assert (changed["ackDeadlineSeconds"], changed["pushConfig"]) == (33, config)
    client.call("Subscriber.ModifyPushConfig", subscription=SUBSCRIPTION, pushConfig={})
    pull_subscription = client.call("Subscriber.GetSubscription", subscription=SUBSCRIPTION)
    assert not pull_subscription.get("pushConfig", {}).get("pushEndpoint")
    client.call("Subscriber.DeleteSubscription", subscription=SUBSCRIPTION)
    assert refused(client, "Subscriber.GetSubscription", subscription=SUBSCRIPTION) == (
        "NOT_FOUND",
        "Resource not found (resource=worker).",
    )


def test_topics_and_subscriptions_are_listed(client: Driver, subscription: str) -> None:
    def names(answer: Any, collection: str) -> list[str]:
        items = answer.get("items", answer.get(collection, []))
        return [item if isinstance(item, str) else item["name"] for item in items]

    assert names(client.call("Publisher.ListTopics", project=PROJECT), "topics") == [TOPIC]
    assert names(client.call("Subscriber.ListSubscriptions", project=PROJECT), "subscriptions") == [SUBSCRIPTION]
    attached = client.call("Publisher.ListTopicSubscriptions", topic=TOPIC)
    assert names(attached, "subscriptions") == [SUBSCRIPTION]
    client.call("Publisher.DetachSubscription", subscription=SUBSCRIPTION)
    assert client.call("Subscriber.GetSubscription", subscription=SUBSCRIPTION)["detached"] is True
    assert names(client.call("Publisher.ListTopicSubscriptions", topic=TOPIC), "subscriptions") == []


@pytest.mark.filterwarnings("ignore:The return_immediately flag is deprecated")
def test_messages_are_published_pulled_and_acknowledged(client: Driver, subscription: str) -> None:
    messages = [{"data": data("one"), "attributes": {"lang": "en"}}, {"data": data("two")}, {"attributes": {"a": "b"}}]
    ids = client.call("Publisher.Publish", topic=TOPIC, messages=messages)["messageIds"]
    received = pull_messages(client, count=3)
    by_id = {entry["message"]["messageId"]: entry["message"] for entry in received}
    assert [by_id[message_id].get("data") for message_id in ids] == [data("one"), data("two"), None]
    assert by_id[ids[0]]["attributes"] == {"lang": "en"}
    assert by_id[ids[0]]["publishTime"]
    client.call("Subscriber.Acknowledge", subscription=subscription, ackIds=[entry["ackId"] for entry in received])
    assert client.call("Subscriber.Pull", subscription=subscription, maxMessages=9, returnImmediately=True) == {}


def test_an_ack_deadline_of_zero_nacks_a_message(client: Driver, subscription: str) -> None:
    client.call("Publisher.Publish", topic=TOPIC, messages=[{"data": data("again")}])
    first = pull_messages(client, count=1)[0]
    client.call(
        "Subscriber.ModifyAckDeadline", subscription=subscription, ackIds=[first["ackId"]], ackDeadlineSeconds=0
    )
    again = pull_messages(client, count=1)[0]
    assert again["message"] == first["message"]
    assert again["ackId"] != first["ackId"]


def test_a_published_message_is_pushed(client: Driver, server: GrpcServer, redis_url: str, receiver: Receiver) -> None:
    client.call("Publisher.CreateTopic", name=TOPIC)
    config = {"pushEndpoint": receiver.url}
    client.call("Subscriber.CreateSubscription", name=SUBSCRIPTION, topic=TOPIC, pushConfig=config)
    with Worker(redis_url):
        ids = client.call("Publisher.Publish", topic=TOPIC, messages=[{"data": data("hello")}])["messageIds"]
        (pushed,) = receiver.wait(1)
    assert pushed.json["message"]["messageId"] == ids[0]
    assert pushed.json["message"]["data"] == data("hello")
    assert pushed.json["subscription"] == SUBSCRIPTION


def test_policies_are_set_read_and_tested(client: Driver, topic: str) -> None:
    bindings = [{"role": "roles/pubsub.publisher", "members": ["user:ada@example.com"]}]
    policy = client.call("Publisher.SetIamPolicy", resource=topic, policy={"bindings": bindings})
    assert policy["bindings"] == bindings
    assert client.call("Publisher.GetIamPolicy", resource=topic)["bindings"] == bindings
    permissions = ["pubsub.topics.publish", "pubsub.topics.get"]
    assert client.call("Publisher.TestIamPermissions", resource=topic, permissions=permissions) == {
        "permissions": permissions
    }


@pytest.mark.parametrize(
    ("method", "request_fields", "code", "message"),
    [
        ("Publisher.GetTopic", {"topic": MISSING}, "NOT_FOUND", "Resource not found (resource=missing)."),
        ("Publisher.CreateTopic", {"name": TOPIC}, "ALREADY_EXISTS", "Resource already exists in the project"),
        ("Publisher.CreateTopic", {"name": f"{PROJECT}/topics/x"}, "INVALID_ARGUMENT", "Invalid resource name given"),
        ("Publisher.Publish", {"topic": TOPIC, "messages": []}, "INVALID_ARGUMENT", "The value for message_count"),
        (
            "Publisher.Publish",
            {"topic": TOPIC, "messages": [{"data": ""}]},
            "INVALID_ARGUMENT",
            "One or more messages in the publish request is empty.",
        ),
        (
            "Publisher.Publish",
            {"topic": TOPIC, "messages": [{"data": "YQ==", "attributes": {"googx": "y"}}]},
            "INVALID_ARGUMENT",
            "Invalid attribute key given",
        ),
        (
            "Publisher.Publish",
            {"topic": TOPIC, "messages": [{"data": "YQ==", "orderingKey": "a"}, {"data": "YQ==", "orderingKey": "b"}]},
            "FAILED_PRECONDITION",
            "In a single publish request, all messages must have",
        ),
        (
            "Subscriber.CreateSubscription",
            {"name": SUBSCRIPTION, "topic": TOPIC, "ackDeadlineSeconds": 5},
            "INVALID_ARGUMENT",
            "Invalid ack deadline given (ack_deadline=5).",
        ),
        ("Subscriber.CreateSubscription", {"name": SUBSCRIPTION, "topic": MISSING}, "NOT_FOUND", "Resource not found"),
        (
            "Subscriber.Pull",
            {"subscription": SUBSCRIPTION, "maxMessages": 1},
            "NOT_FOUND",
            "Resource not found (resource=worker).",
        ),
        (
            "Publisher.UpdateTopic",
            {"topic": {"name": TOPIC, "labels": {"A": "b"}}, "updateMask": "labels"},
            "INVALID_ARGUMENT",
            "",
        ),
        (
            "Publisher.UpdateTopic",
            {"topic": {"name": TOPIC}, "updateMask": "name"},
            "INVALID_ARGUMENT",
            "Invalid update_mask provided in the UpdateTopicRequest: the 'name' field in the Topic is not mutable.",
        ),
    ],
)
def test_bad_requests_get_their_code_and_message(
    client: Driver, topic: str, method: str, request_fields: dict[str, Any], code: str, message: str
) -> None:
    refusal = refused(client, method, **request_fields)
    assert refusal[0] == code
    assert message in refusal[1]


def test_a_push_subscription_cannot_be_pulled(client: Driver, topic: str) -> None:
    config = {"pushEndpoint": "https://example.com/push"}
    client.call("Subscriber.CreateSubscription", name=SUBSCRIPTION, topic=topic, pushConfig=config)
    assert refused(client, "Subscriber.Pull", subscription=SUBSCRIPTION, maxMessages=1) == (
        "FAILED_PRECONDITION",
        "This method is not supported for this subscription type.",
    )


def test_a_made_up_ack_id_is_refused(client: Driver, subscription: str) -> None:
    code, message = refused(client, "Subscriber.Acknowledge", subscription=subscription, ackIds=["made-up"])
    assert code == "INVALID_ARGUMENT"
    assert "You have passed an invalid ack ID" in message


def test_a_seek_to_a_snapshot_returns_its_messages(client: Driver, subscription: str) -> None:
    client.call("Publisher.Publish", topic=TOPIC, messages=[{"data": data("kept")}])
    name = f"{PROJECT}/snapshots/before"
    snapshot = client.call("Subscriber.CreateSnapshot", name=name, subscription=subscription, labels={"team": "a"})
    assert (snapshot["name"], snapshot["topic"], snapshot["labels"]) == (name, TOPIC, {"team": "a"})
    assert client.call("Subscriber.GetSnapshot", snapshot=name)["topic"] == TOPIC
    received = pull_messages(client, count=1)
    client.call("Subscriber.Acknowledge", subscription=subscription, ackIds=[received[0]["ackId"]])
    client.call("Subscriber.Seek", subscription=subscription, snapshot=name)
    assert pull_messages(client, count=1)[0]["message"] == received[0]["message"]
    client.call("Subscriber.Seek", subscription=subscription, time="2090-01-01T00:00:00Z")
    client.call("Subscriber.DeleteSnapshot", snapshot=name)
    assert refused(client, "Subscriber.GetSnapshot", snapshot=name)[0] == "NOT_FOUND"


def test_a_schema_is_created_changed_validated_and_deleted(client: Driver) -> None:
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
    schema = {"type": "AVRO", "definition": definition}
    name = f"{PROJECT}/schemas/orders"
    created = client.call("SchemaService.CreateSchema", parent=PROJECT, schemaId="orders", schema=schema)
    assert (created["name"], created["definition"]) == (name, definition)
    first = created["revisionId"]
    wider = definition.replace("]}", ', {"name": "s", "type": "string", "default": ""}]}')
    committed = client.call(
        "SchemaService.CommitSchema", name=name, schema={"name": name, "type": "AVRO", "definition": wider}
    )
    assert committed["revisionId"] != first
    assert client.call("SchemaService.GetSchema", name=f"{name}@{first}")["definition"] == definition
    answer = client.call("SchemaService.ListSchemaRevisions", name=name)
    assert len(answer.get("items", answer.get("schemas", []))) == 2
    rolled_back = client.call("SchemaService.RollbackSchema", name=name, revisionId=first)
    assert rolled_back["definition"] == definition
    client.call("SchemaService.DeleteSchemaRevision", name=f"{name}@{first}")
    client.call("SchemaService.ValidateSchema", parent=PROJECT, schema=schema)
    assert (
        refused(
            client, "SchemaService.ValidateSchema", parent=PROJECT, schema={"type": "AVRO", "definition": "nonsense"}
        )[0]
        == "INVALID_ARGUMENT"
    )
    client.call(
        "SchemaService.ValidateMessage", parent=PROJECT, schema=schema, message=data('{"n": 1}'), encoding="JSON"
    )
    client.call("Publisher.CreateTopic", name=TOPIC, schemaSettings={"schema": name, "encoding": "JSON"})
    client.call("Publisher.Publish", topic=TOPIC, messages=[{"data": data('{"n": 1}')}])
    assert refused(client, "Publisher.Publish", topic=TOPIC, messages=[{"data": data('{"n": "x"}')}])[0] == (
        "INVALID_ARGUMENT"
    )
    client.call("SchemaService.DeleteSchema", name=name)
    assert refused(client, "SchemaService.GetSchema", name=name)[0] == "NOT_FOUND"
