"""Metro's weak points (docs/lessons.md#lessons-from-metro) that no other file tests: a test for a row, by its number.

The others: 1 and 2 in push/test_delivery.py (killed workers), 5 in api/test_subscriptions.py (every field, every mask),
9 in push/test_answers.py (redirects) and client/test_dials.py, 10 in push/test_outages.py, 11 in
tests/unit/test_environment.py, 14 in publish/test_publish.py.
"""

from __future__ import annotations

import base64
from typing import Any

import pytest

from deliveries.models import Delivery
from subscriptions.models import Subscription
from subscriptions.selectors import push_settings
from tests.ports import wait_for
from tests.receiver import Answer, Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
#: The fields that an update may name, each with a value other than the default.
CHANGES: dict[str, Any] = {
    "pushConfig": {"pushEndpoint": "https://a.example", "attributes": {"x-goog-version": "v1"}},
    "ackDeadlineSeconds": 77,
    "retainAckedMessages": True,
    "messageRetentionDuration": "1200s",
    "labels": {"a": "b"},
    "expirationPolicy": {"ttl": "864000s"},
    "deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 9},
    "retryPolicy": {"minimumBackoff": "1s", "maximumBackoff": "2s"},
}


@pytest.fixture
def api(redis_url: str) -> Api:
    shop = Api()
    shop.create("topics/orders")
    shop.create("topics/dead")
    return shop


def publish(api: Api, *texts: str, **fields: Any) -> list[str]:
    messages = [{"data": base64.b64encode(text.encode()).decode(), **fields} for text in texts]
    answer = api.post("topics/orders:publish", {"messages": messages})
    assert answer.status == 200, answer
    ids: list[str] = answer.body["messageIds"]
    return ids


def pulled(api: Api, name: str) -> list[str]:
    body = api.post(f"subscriptions/{name}:pull", {"maxMessages": 100, "returnImmediately": True}).body
    return [entry["message"]["messageId"] for entry in body.get("receivedMessages", [])]


def settled() -> None:
    wait_for(lambda: not Delivery.objects.exists(), what="the last ack")


def test_3_a_subscription_owns_every_message_from_its_create_answer_on(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    publish(api, "before")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    api.create("subscriptions/pull", {"topic": TOPIC})
    published = publish(api, "first", "second")  # no worker has run yet
    assert pulled(api, "pull") == published
    api.delete("subscriptions/pull")
    with Worker(redis_url):
        wait_for(lambda: len(receiver.requests) == 2, what="two pushes")
    assert sorted(request.json["message"]["messageId"] for request in receiver.requests) == published


def test_4_an_ordered_subscription_leaves_its_neighbours_window_alone(api: Api) -> None:
    api.create("subscriptions/ordered", {"topic": TOPIC, "enableMessageOrdering": True})
    api.create("subscriptions/plain", {"topic": TOPIC})
    published = publish(api, *"abcdefghij", orderingKey="one")
    assert pulled(api, "ordered")[:1] == published[:1]
    assert pulled(api, "plain") == published


@pytest.mark.parametrize("field", CHANGES)
def test_5_no_update_of_one_field_changes_another_or_the_neighbour(api: Api, field: str) -> None:
    fixed = {"topic": TOPIC, "enableMessageOrdering": True, "filter": 'attributes.kind = "order"'}
    before = api.create("subscriptions/one", fixed)
    neighbour = api.create("subscriptions/two", fixed)
    changed = api.patch("subscriptions/one", {"subscription": {field: CHANGES[field]}, "updateMask": field}).body
    assert changed == {**before, field: CHANGES[field]}
    assert api.get("subscriptions/one").body == changed
    restored = api.patch("subscriptions/one", {"subscription": {}, "updateMask": field}).body
    # An empty push config stops the pushing and keeps the version of its messages, as in production.
    kept = {"pushConfig": {"attributes": {"x-goog-version": "v1"}}} if field == "pushConfig" else {}
    assert restored == {**before, **kept}
    assert api.get("subscriptions/two").body == neighbour


def test_5_ordering_is_still_kept_after_updates(api: Api) -> None:
    api.create("subscriptions/ordered", {"topic": TOPIC, "enableMessageOrdering": True})
    api.patch("subscriptions/ordered", {"subscription": {"labels": {"a": "b"}}, "updateMask": "labels"})
    api.post("subscriptions/ordered:modifyPushConfig", {"pushConfig": {}})
    published = publish(api, "1", orderingKey="k") + publish(api, "2", orderingKey="k")
    first = api.post("subscriptions/ordered:pull", {"maxMessages": 1}).body["receivedMessages"]
    assert [entry["message"]["messageId"] for entry in first] == published[:1]
    api.post("subscriptions/ordered:modifyAckDeadline", {"ackIds": [first[0]["ackId"]], "ackDeadlineSeconds": 0})
    again = api.post("subscriptions/ordered:pull", {"maxMessages": 1}).body["receivedMessages"]
    assert [entry["message"]["messageId"] for entry in again] == published[:1]


@pytest.mark.parametrize("policy", [{"minimumBackoff": "1s"}, {"maximumBackoff": "60s"}, {}])
def test_6_a_retry_policy_with_one_bound_gets_the_other(api: Api, policy: dict[str, str]) -> None:
    subscription = api.create("subscriptions/one", {"topic": TOPIC, "retryPolicy": policy})
    assert subscription["retryPolicy"] == {"minimumBackoff": "10s", "maximumBackoff": "600s", **policy}
    assert api.get("subscriptions/one").body == subscription


@pytest.mark.parametrize("header", ["Basic bm9jb2xvbg==", "Basic", "Bearer", "Bearer  ", ":", "nocolon", "Basic %%%"])
def test_6_a_malformed_authorization_is_refused_and_harms_nothing(api: Api, header: str) -> None:
    answer = api.get("topics", authorization=header)
    assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")


def test_7_deadlines_are_each_subscriptions_own(api: Api) -> None:
    for name, seconds in (("short", 10), ("long", 600), ("middle", 60)):
        api.create(f"subscriptions/{name}", {"topic": TOPIC, "ackDeadlineSeconds": seconds})
    keys = {row.subscription_id: row.pk for row in Subscription.objects.all()}
    settings_by_key = push_settings(keys.values())
    assert {name: settings_by_key[key].ack_deadline_seconds for name, key in keys.items()} == {
        "short": 10,
        "long": 600,
        "middle": 60,
    }


def test_8_a_connection_outlives_answers_with_bodies(api: Api, receiver: Receiver, redis_url: str) -> None:
    errors = iter([503, 500])
    receiver.default = lambda _: Answer(next(errors, 204), body=b"an explanation, at some length" * 20)
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    publish(api, "message")
    with Worker(redis_url):
        settled()
    assert len(receiver.requests) == 3
    assert len({request.connection for request in receiver.requests}) == 1


def test_9_creating_a_subscription_connects_to_no_endpoint(api: Api, receiver: Receiver) -> None:
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url + "/other"}})
    assert receiver.connections == 0


def test_deliveryattempt_is_always_present_when_the_setting_asks_for_it(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    publish(api, "message")
    with Worker(redis_url, PUSHHUB_DELIVERY_ATTEMPT_ALWAYS="on"):
        settled()
    [request] = receiver.requests
    assert request.json["deliveryAttempt"] == 1
