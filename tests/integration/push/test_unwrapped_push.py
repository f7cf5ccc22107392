"""Unwrapped pushes (docs/spec-delivery.md#unwrapped-push) and the endpoint's version (#push-attributes there)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from deliveries.models import Delivery
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database, pytest.mark.usefixtures("redis_url")]

TOPIC = "projects/shop/topics/orders"
NAME = "projects/shop/subscriptions/push"
#: The headers that the push client itself adds to every request.
PLAIN_HEADERS = {"host", "user-agent", "accept", "accept-encoding", "content-length", "connection", "from"}


def pushed(
    api: Api,
    receiver: Receiver,
    redis_url: str,
    message: dict[str, Any],
    no_wrapper: dict[str, Any] | None,
    **fields: Any,
) -> tuple[Request, str]:
    """Publish a message, and return its request and its id."""
    api.create("topics/orders")
    push_config = {"pushEndpoint": receiver.url, "noWrapper": no_wrapper}  # null counts as absent
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": push_config, **fields})
    answer = api.post("topics/orders:publish", {"messages": [message]})
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists(), what="the ack")
    [request] = receiver.requests
    return request, answer.body["messageIds"][0]


def of(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"data": base64.b64encode(data).decode(), **fields}


@pytest.mark.parametrize("data", [b"\x00\xff raw bytes \r\n", b'{"an":"object"}'])
def test_without_metadata_only_the_data_is_sent(api: Api, receiver: Receiver, redis_url: str, data: bytes) -> None:
    request, _ = pushed(api, receiver, redis_url, of(data, attributes={"Content-Type": "text/csv", "a": "b"}), {})

    assert (request.method, request.body) == ("POST", data)
    assert set(request.headers) <= PLAIN_HEADERS
    assert request.headers["user-agent"] == "CloudPubSub-Google"
    assert request.headers["content-length"] == str(len(data))


def test_with_metadata_the_message_and_its_attributes_are_headers(api: Api, receiver: Receiver, redis_url: str) -> None:
    message = of(b"a;b", attributes={"Content-Type": "text/csv", "Colour": "red"}, orderingKey="customer 7")

    request, message_id = pushed(api, receiver, redis_url, message, {"writeMetadata": True}, enableMessageOrdering=True)

    assert request.body == b"a;b"
    publish_time = request.headers["x-goog-pubsub-publish-time"]
    assert {name: value for name, value in request.headers.items() if name not in PLAIN_HEADERS} == {
        "x-goog-pubsub-subscription-name": NAME,
        "x-goog-pubsub-message-id": message_id,
        "x-goog-pubsub-publish-time": publish_time,
        "x-goog-pubsub-ordering-key": "customer 7",
        "content-type": "text/csv",
        "colour": "red",
    }
    assert publish_time.endswith("Z") and publish_time[10] == "T"


def test_attributes_neither_forge_headers_nor_replace_those_of_pushhub(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    hostile = {
        "Host": "elsewhere.example",
        "Content-Length": "1",
        "Authorization": "Bearer forged",
        "Transfer-Encoding": "chunked",
        "x-goog-pubsub-message-id": "1",
        "split": "a\r\nX-Injected: yes",
        "na me": "blank",
        "umlaut": "ü",
        "fine": "yes",
    }

    request, message_id = pushed(api, receiver, redis_url, of(b"data", attributes=hostile), {"writeMetadata": True})

    assert request.body == b"data"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["x-goog-pubsub-message-id"] == message_id
    assert request.headers["fine"] == "yes"
    refused = {"authorization", "transfer-encoding", "x-injected", "split", "na me", "umlaut"}
    assert not refused & set(request.headers)


@pytest.mark.parametrize("no_wrapper", [None, {}, {"writeMetadata": True}])
def test_the_publishers_trace_goes_on_at_the_endpoint(
    api: Api, receiver: Receiver, redis_url: str, no_wrapper: dict[str, Any] | None
) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    attributes = {"traceparent": "theirs", "googclient_traceparent": trace}

    request, _ = pushed(api, receiver, redis_url, of(b"data", attributes=attributes), no_wrapper)

    assert request.headers["traceparent"] == trace
    if no_wrapper is None:
        assert request.json["message"]["attributes"] == attributes


def test_a_message_with_only_attributes_has_an_empty_body(api: Api, receiver: Receiver, redis_url: str) -> None:
    request, _ = pushed(api, receiver, redis_url, {"attributes": {"only": "this"}}, {"writeMetadata": True})

    assert request.body == b"" and request.headers["content-length"] == "0" and request.headers["only"] == "this"


def test_a_delivery_attempt_has_no_header(api: Api, receiver: Receiver, redis_url: str) -> None:
    api.create("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}

    request, _ = pushed(api, receiver, redis_url, of(b"data"), {"writeMetadata": True}, deadLetterPolicy=policy)

    assert not [name for name in request.headers if "attempt" in name]


def test_the_endpoints_version_is_kept_shown_and_not_sent(api: Api, receiver: Receiver, redis_url: str) -> None:
    api.create("topics/orders")
    version = {"x-goog-version": "v1"}
    push_config = {"pushEndpoint": receiver.url, "attributes": version}
    subscription = api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": push_config})
    assert subscription["pushConfig"] == push_config
    # Given a new config without a version, then the version is unchanged
    api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url + "/other"}})
    assert api.get("subscriptions/push").body["pushConfig"]["attributes"] == version
    api.post("topics/orders:publish", {"messages": [of(b"data")]})
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists(), what="the ack")
    [request] = receiver.requests
    assert "x-goog-version" not in request.headers and "attributes" not in request.json["message"]
