"""Filters: which subscription gets which message, over REST, pushed, pulled and in order."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from deliveries.models import Delivery, Message
from deliveries.retention.sweep import sweep_settled
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    return api


def subscribe(api: Api, name: str, filter: str, **fields: Any) -> None:
    subscription = api.create(f"subscriptions/{name}", {"topic": TOPIC, "filter": filter, **fields})
    assert subscription["filter"] == filter


def publish(api: Api, *kinds: str, key: str = "") -> list[str]:
    messages = [
        {"data": base64.b64encode(kind.encode()).decode(), "attributes": {"kind": kind}, "orderingKey": key}
        for kind in kinds
    ]
    ids: list[str] = api.post("topics/orders:publish", {"messages": messages}).body["messageIds"]
    return ids


def pulled(api: Api, name: str) -> list[str]:
    received = api.post(f"subscriptions/{name}:pull", {"maxMessages": 100, "returnImmediately": True}).body
    return [entry["message"]["attributes"]["kind"] for entry in received.get("receivedMessages", [])]


def test_only_matching_messages_are_delivered_and_the_rest_counts_as_acknowledged(api: Api) -> None:
    subscribe(api, "orders", 'attributes.kind = "order"')
    subscribe(api, "others", 'attributes.kind != "order"')
    api.create("subscriptions/everything", {"topic": TOPIC})
    publish(api, "order", "return", "order", "note")
    assert pulled(api, "orders") == ["order", "order"]
    assert pulled(api, "others") == ["return", "note"]
    assert pulled(api, "everything") == ["order", "return", "order", "note"]


def test_a_message_that_no_filter_passes_is_not_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(api, "orders", 'attributes.kind = "order"')
    publish(api, "return")
    assert not Delivery.objects.exists()
    monkeypatch.setattr("deliveries.retention.sweep.SETTLED_GRACE_MS", -1000)
    sweep_settled()
    assert not Message.objects.exists()


def test_messages_in_order_are_filtered_too(api: Api) -> None:
    subscribe(api, "orders", 'attributes.kind = "order"', enableMessageOrdering=True)
    publish(api, "note", "order", "note", key="k")
    publish(api, "note", key="k")
    assert pulled(api, "orders") == ["order"]


def test_pushed_messages_are_filtered(api: Api, redis_url: str, receiver: Receiver) -> None:
    subscribe(api, "pushed", 'hasPrefix(attributes.kind, "or")', pushConfig={"pushEndpoint": receiver.url})
    with Worker(redis_url):
        publish(api, "note", "order", "orange")
        kinds = {request.json["message"]["attributes"]["kind"] for request in receiver.wait(2)}
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
    assert kinds == {"order", "orange"}
    assert len(receiver.requests) == 2


def test_a_bad_filter_is_refused_and_leaves_nothing(api: Api) -> None:
    answer = api.put("subscriptions/orders", {"topic": TOPIC, "filter": "attributes.kind = order"})
    assert (answer.status, answer.fields) == (400, ["filter"])
    assert "a string in double quotes is expected at character 19" in answer.error["message"]
    assert api.get("subscriptions/orders").status == 404


def test_a_filter_cannot_be_changed(api: Api) -> None:
    subscribe(api, "orders", 'attributes.kind = "order"')
    patch = {"subscription": {"filter": ""}, "updateMask": "filter"}
    answer = api.patch("subscriptions/orders", patch)
    assert answer.status == 400
    assert "the 'filter' field in the Subscription is not mutable" in answer.error["message"]
