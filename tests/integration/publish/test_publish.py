"""Publishing over REST: what is accepted, what is refused and with which text; a refused request stores nothing."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
import redis
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deliveries.backlog.default import default_backlog
from deliveries.backlog.paging import page_in
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, Message
from deliveries.publish import offering
from deliveries.rules.ids import publish_time_ms
from tests.integration.publish.directapi import direct_api
from tests.lanes import lane_state, low_queue, page_requests
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
HELLO = base64.b64encode(b"hello").decode()


@pytest.fixture(params=["django", "direct"])
def api(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Api]:
    """Yield a caller of either path of a publish request (deliveries/api/direct.py)."""
    with nullcontext(Api()) if request.param == "django" else direct_api() as api:
        api.put("topics/orders")
        api.put("subscriptions/pulled", {"topic": "projects/shop/topics/orders"})
        yield api


def publish(api: Api, *messages: Any) -> Any:
    return api.post("topics/orders:publish", {"messages": list(messages)})


def test_ids_come_back_in_order_and_everything_is_stored(api: Api) -> None:
    answer = publish(api, {"data": HELLO, "attributes": {"a": "1"}}, {"attributes": {"a": "2"}})
    assert answer.status == 200
    ids = [int(message_id) for message_id in answer.body["messageIds"]]
    assert ids == sorted(ids)
    stored = list(Message.objects.order_by("id"))
    assert [message.pk for message in stored] == ids
    assert [bytes(message.data) for message in stored] == [b"hello", b""]
    assert [orjson.loads(message.attributes) for message in stored] == [{"a": "1"}, {"a": "2"}]
    assert list(Delivery.objects.order_by("message_id").values_list("message_id", flat=True)) == ids
    assert publish_time_ms(ids[0]) > 1_700_000_000_000


def test_a_topic_without_subscriptions_accepts_messages(api: Api) -> None:
    api.put("topics/lonely")
    assert api.post("topics/lonely:publish", {"messages": [{"data": HELLO}]}).status == 200
    assert not Delivery.objects.exists()


def test_snake_case_url_safe_and_unpadded_base64_are_accepted(api: Api) -> None:
    data = base64.urlsafe_b64encode(b"\xff\xfe\xfd\xfc").decode().rstrip("=")
    assert publish(api, {"data": data, "ordering_key": "k"}).status == 200
    message = Message.objects.get()
    assert (bytes(message.data), message.ordering_key) == (b"\xff\xfe\xfd\xfc", "k")


def test_a_gzipped_body_is_accepted(api: Api) -> None:
    body = gzip.compress(orjson.dumps({"messages": [{"data": HELLO}]}))
    assert api.call("POST", "topics/orders:publish", body, **{"Content-Encoding": "gzip"}).status == 200


def test_an_id_and_a_time_from_the_client_are_ignored(api: Api) -> None:
    answer = publish(api, {"data": HELLO, "messageId": "1", "publishTime": "2020-01-01T00:00:00Z"})
    assert answer.status == 200
    assert answer.body["messageIds"] != ["1"]


def test_an_unknown_topic_is_not_found(api: Api) -> None:
    answer = api.post("topics/nobody:publish", {"messages": [{"data": HELLO}]})
    assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")
    assert answer.error["message"] == "Resource not found (resource=nobody)."


REFUSED: dict[str, tuple[Any, str, str]] = {
    "no messages": ({}, "messages", "is too small. You passed 0"),
    "an empty list": ({"messages": []}, "messages", "is too small"),
    "too many": ({"messages": [{"data": HELLO}] * 1001}, "messages", "You passed 1001"),
    "an empty message": ({"messages": [{"data": HELLO}, {}]}, "messages[1].data", "empty"),
    "a key alone": ({"messages": [{"orderingKey": "k"}]}, "messages[0].data", "empty"),
    "bad base64": ({"messages": [{"data": "!!!"}]}, "messages[0].data", "Base64"),
    "data that is no text": ({"messages": [{"data": 5}]}, "messages[0].data", "TYPE_BYTES"),
    "an unknown field": ({"messages": [{"dta": HELLO}]}, "messages[0].dta", 'Unknown name "dta"'),
    "two spellings": (
        {"messages": [{"data": HELLO, "orderingKey": "a", "ordering_key": "a"}]},
        "messages[0].orderingKey",
        "two spellings",
    ),
    "a long key": ({"messages": [{"attributes": {"k" * 257: "v"}}]}, "messages[0].attributes", "256"),
    "a long value": ({"messages": [{"attributes": {"k": "v" * 1025}}]}, "messages[0].attributes.k", "1024"),
    "an empty key": ({"messages": [{"attributes": {"": "v"}}]}, "messages[0].attributes", "empty"),
    "a goog key": ({"messages": [{"attributes": {"GOOGx": "v"}}]}, "messages[0].attributes", "goog"),
    "many attributes": (
        {"messages": [{"attributes": {str(i): "v" for i in range(101)}}]},
        "messages[0].attributes",
        "maximum value is 100",
    ),
    "a number for a text": ({"messages": [{"attributes": {"k": 1}}]}, "messages[0].attributes.k", "TYPE_STRING"),
    "a long ordering key": (
        {"messages": [{"data": HELLO, "orderingKey": "k" * 1025}]},
        "messages[0].orderingKey",
        "1024",
    ),
    "messages that are no list": ({"messages": {}}, "messages", "messages"),
}


@pytest.mark.any_database
@pytest.mark.parametrize("body, field, words", REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_request_names_its_field_and_stores_nothing(api: Api, body: Any, field: str, words: str) -> None:
    answer = api.post("topics/orders:publish", body)
    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.fields == [field]
    assert words in answer.error["message"]
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()


def test_mixed_ordering_keys_are_a_failed_precondition(api: Api) -> None:
    answer = publish(api, {"data": HELLO, "orderingKey": "a"}, {"data": HELLO})
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert not Message.objects.exists()


def test_a_region_that_cannot_name_a_queue_is_refused(api: Api) -> None:
    body = {"messages": [{"data": HELLO}]}
    answer = api.post("topics/orders:publish", body, **{"X-PushHub-Region": "Europe West"})
    assert (answer.status, answer.fields) == (400, ["region"])
    assert not Message.objects.exists()


def test_an_unknown_region_is_refused_and_the_known_ones_are_named(api: Api, settings: Any) -> None:
    """No worker would serve the region, and its messages would wait until retention deletes them."""
    settings.REGIONS = ["local", "europe-west1"]
    body = {"messages": [{"data": HELLO}]}
    answer = api.post("topics/orders:publish", body, **{"X-PushHub-Region": "europe-west2"})
    assert (answer.status, answer.error["status"], answer.fields) == (400, "INVALID_ARGUMENT", ["region"])
    assert answer.error["message"] == ("Unknown region given (region=europe-west2). Regions are local, europe-west1.")
    assert not Message.objects.exists()


def test_each_publish_region_has_a_window_of_its_own(api: Api, settings: Any) -> None:
    """docs/spec-delivery.md#push-window: N publish regions have N windows."""
    settings.REGIONS = ["local", "europe-west1"]
    api.put("subscriptions/pushed", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}})
    body = {"messages": [{"data": HELLO}] * 10}
    for region in ("local", "europe-west1"):
        api.post("topics/orders:publish", body, **{"X-PushHub-Region": region})
    backlog = default_backlog()
    lane = Lane(Delivery.objects.latest("id").subscription_id, "europe-west1")
    for request in page_requests(backlog, region="europe-west1"):
        page_in([request])
    assert backlog.client.llen(low_queue("local")) == 3
    assert backlog.client.llen(low_queue("europe-west1")) == 3
    assert lane_state(backlog, lane).outstanding == 3


def test_a_missing_topic_is_not_found_whatever_is_published(api: Api) -> None:
    for message in ({}, {"attributes": {"goog": "x"}}):
        answer = api.post("topics/nothing:publish", {"messages": [message]})
        assert (answer.status, answer.error["status"]) == (404, "NOT_FOUND")


def test_an_attributes_value_may_hold_any_character(api: Api) -> None:
    api.create("subscriptions/reader", {"topic": TOPIC})
    attributes = {"a": "\0 and \u2028", "b": "ü"}
    assert publish(api, {"attributes": attributes}).status == 200
    answer = api.post("subscriptions/reader:pull", {"maxMessages": 1, "returnImmediately": True})
    [received] = answer.body["receivedMessages"]
    assert received["message"]["attributes"] == attributes
    assert publish(api, {"data": HELLO, "attributes": {"\0": "a"}}).status == 400
    assert publish(api, {"data": HELLO, "orderingKey": "\0"}).status == 400


def test_a_storage_policy_moves_or_refuses_messages_from_another_region(api: Api, settings: Any) -> None:
    settings.REGIONS = ["local", "eu", "us"]
    body = {"messages": [{"data": HELLO}]}
    policy: dict[str, Any] = {"allowedPersistenceRegions": ["local", "eu"]}

    def published(region: str) -> Any:
        change = {"topic": {"messageStoragePolicy": policy}, "updateMask": "messageStoragePolicy"}
        assert api.patch("topics/orders", change).status == 200
        return api.post("topics/orders:publish", body, **{"X-PushHub-Region": region})

    assert published("us").status == 200
    assert Message.objects.get().region == "local"
    policy["enforceInTransit"] = True
    refused = published("us")
    assert (refused.status, refused.error["status"]) == (400, "FAILED_PRECONDITION")
    assert "region us" in refused.error["message"]
    assert Message.objects.count() == 1
    assert published("eu").status == 200


def test_malformed_json_is_refused(api: Api) -> None:
    answer = api.call("POST", "topics/orders:publish", b'{"messages": [')
    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")


def test_a_body_over_the_limit_is_refused(api: Api) -> None:
    answer = api.call("POST", "topics/orders:publish", b" " * (10 * 1024 * 1024 + 1))
    assert (answer.status, answer.error["status"]) == (400, "INVALID_ARGUMENT")
    assert answer.error["message"] == "Request payload size exceeds the limit: 10485760 bytes."


def test_a_publish_that_fails_half_way_stores_nothing(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a delivery that the database refuses, as its region is null
    monkeypatch.setattr("deliveries.publish.storing.delivery_rows", lambda ids, *_, **__: [(ids[0], 1, None, 0, "")])

    assert publish(api, {"data": HELLO}).status >= 500

    assert not Message.objects.exists()


def test_postgresql_stores_a_publish_by_one_statement(redis_url: str) -> None:
    api = Api()
    api.put("topics/orders")
    api.put("subscriptions/pulled", {"topic": TOPIC})

    with CaptureQueriesContext(connection) as queries:
        publish(api, {"data": HELLO}, {"data": HELLO})

    writes = [query["sql"] for query in queries if not query["sql"].startswith("SELECT")]
    assert len(writes) == (1 if connection.vendor == "postgresql" else 4)
    assert "".join(writes).count("INSERT INTO") == 2
    assert Delivery.objects.count() == 2


def test_a_publish_whose_ids_collide_draws_new_ids(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from deliveries.publish import storing

    [taken] = publish(api, {"data": HELLO}).body["messageIds"]
    real = storing._message_ids.take
    clash = [[int(taken)]]
    monkeypatch.setattr(storing._message_ids, "take", lambda *a, **k: clash.pop() if clash else real(*a, **k))
    assert publish(api, {"data": HELLO}).status == 200
    assert Message.objects.count() == 2


def test_only_the_first_publish_waits_long_for_a_redis_that_is_silent(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, gone = redis.TimeoutError("silent"), redis.ConnectionError("gone")
    patient = Mock(offer=Mock(side_effect=[silent, gone]))
    impatient = Mock(offer=Mock(side_effect=[silent, gone, None]))
    monkeypatch.setattr(offering, "default_backlog", lambda: patient)
    monkeypatch.setattr(offering, "impatient_backlog", lambda asker: impatient)
    assert {publish(api, {"data": HELLO}).status for _ in range(5)} == {200}
    assert (patient.offer.call_count, impatient.offer.call_count) == (2, 3)
