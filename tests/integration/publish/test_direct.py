"""Publish requests that are answered without Django: which ones are, and that the answers are the same."""

from __future__ import annotations

import asyncio
import base64
import http.client
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
from django.db import connection

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, Message
from deliveries.publish.writer import SmallPublish, publish_writer
from deliveries.rules.payload import NewMessage
from subscriptions.iam import epoch, grants, tree
from subscriptions.identity.access_tokens import create_access_token, revoke_access_token
from subscriptions.models import Subscription, Topic
from tests.integration.publish.directapi import DirectApi, direct_api
from tests.lanes import are_known, lane_change
from tests.restapi import Api
from tests.webservers import WebServer

pytestmark = pytest.mark.django_db(transaction=True)

PUBLISH = "topics/orders:publish"
MESSAGE = {"data": base64.b64encode(b"hello").decode(), "attributes": {"a": "1"}}
BODY: dict[str, Any] = {"messages": [MESSAGE]}
ADA = "user:ada@example.com"


@pytest.fixture
def api(redis_url: str) -> Iterator[DirectApi]:
    with direct_api() as api:
        api.create("topics/orders")
        api.create("subscriptions/pulled", {"topic": "projects/shop/topics/orders"})
        yield api


def lane() -> Lane:
    return Lane(Subscription.objects.get(subscription_id="pulled").pk, "local")


def test_the_answer_has_the_same_header_fields_as_djangos(api: DirectApi) -> None:
    def fields(**headers: str) -> tuple[set[tuple[str, str]], str]:
        status, fields, content = api.exchange("POST", PUBLISH, BODY, **headers)
        assert status == 200
        [message_id] = orjson.loads(content)["messageIds"]
        return {field for field in fields if field[0] != "Date"}, message_id

    direct, first_id = fields()
    django, second_id = fields(**{"X-Unknown": "1"})
    assert api.outcomes == ["direct", "left"]
    assert direct == django
    assert int(first_id) < int(second_id)


def test_a_message_is_stored_and_offered_before_the_answer(api: DirectApi) -> None:
    [message_id] = api.post(PUBLISH, {"messages": [{**MESSAGE, "orderingKey": "k"}]}).body["messageIds"]
    assert api.outcomes == ["direct"]
    message = Message.objects.get()
    assert (str(message.pk), bytes(message.data), message.attributes) == (message_id, b"hello", '{"a":"1"}')
    assert (message.ordering_key, message.region) == ("k", "local")
    assert are_known(default_backlog(), lane(), [message.pk]) == [True]


@pytest.mark.parametrize(
    "headers",
    [
        {"Accept-Language": "zh"},
        {"Cookie": "pushhub_session=x"},
        {"Content-Type": "text/plain"},
        {"Origin": "http://elsewhere.example.com"},
    ],
    ids=lambda headers: next(iter(headers)),
)
def test_a_request_with_an_unusual_header_is_left_to_django(api: DirectApi, headers: dict[str, str]) -> None:
    status = api.exchange("POST", PUBLISH, BODY, **headers)[0]
    assert (status, api.outcomes) == (403 if "Origin" in headers else 200, ["left"])


@pytest.mark.parametrize(
    "path", [f"{PUBLISH}?fields=messageIds", f"{PUBLISH}?access_token=x", "topics/%6Frders:publish", f"{PUBLISH}/"]
)
def test_a_request_with_an_unusual_address_is_left_to_django(api: DirectApi, path: str) -> None:
    api.exchange("POST", path, BODY)
    assert api.outcomes == ["left"]


def test_many_messages_are_left_to_django(api: DirectApi) -> None:
    assert api.post(PUBLISH, {"messages": [MESSAGE] * 31}).status == 200
    assert api.outcomes == ["left"]


def test_a_host_that_is_not_ours_is_refused(api: DirectApi) -> None:
    status = api.exchange("POST", PUBLISH, BODY, Host="elsewhere.example.com")[0]
    assert (status, api.outcomes) == (400, ["left"])


def test_the_region_and_the_storage_policy_of_the_topic_are_respected(api: DirectApi, settings: Any) -> None:
    settings.REGIONS = ["local", "far", "away"]
    policy: dict[str, Any] = {"allowedPersistenceRegions": ["local", "far"]}
    body = {"topic": {"messageStoragePolicy": policy}, "updateMask": "messageStoragePolicy"}
    assert api.patch("topics/orders", body).status == 200
    for region in ("", "far", "away"):
        assert api.post(PUBLISH, BODY, **{"X-PushHub-Region": region}).status == 200
    assert [message.region for message in Message.objects.order_by("pk")] == ["local", "far", "local"]
    policy["enforceInTransit"] = True
    assert api.patch("topics/orders", body).status == 200
    assert api.post(PUBLISH, BODY, **{"X-PushHub-Region": "away"}).error["status"] == "FAILED_PRECONDITION"
    assert api.post(PUBLISH, BODY, **{"X-PushHub-Region": "nowhere"}).error["status"] == "INVALID_ARGUMENT"
    assert api.outcomes == ["direct", "direct", "direct", "given back", "left"]


def test_publishes_over_a_quota_are_refused_one_by_one_and_others_are_direct(api: DirectApi, settings: Any) -> None:
    settings.QUOTAS = True
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 2
    api.create("/v1/projects/other/topics/orders")
    answers = [api.post(PUBLISH, BODY).status for _ in range(3)]
    assert api.post("/v1/projects/other/topics/orders:publish", BODY).status == 200
    assert (answers, api.outcomes) == ([200, 200, 429], ["direct", "direct", "given back", "direct"])
    assert Message.objects.count() == 3


def test_a_topic_with_a_schema_checks_what_is_published_directly(api: DirectApi) -> None:
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
    schema = {"type": "AVRO", "definition": definition}
    assert api.post("schemas?schemaId=numbers", schema).status == 200
    settings = {"schema": "projects/shop/schemas/numbers", "encoding": "JSON"}
    api.create("topics/checked", {"schemaSettings": settings})
    answer = api.post("topics/checked:publish", BODY)
    assert (answer.status, api.outcomes) == (400, ["given back"])
    assert not Message.objects.exists()


def test_a_request_for_which_many_filters_are_evaluated_is_given_back(
    api: DirectApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deliveries.publish.writer.MAX_DELIVERIES", 1)
    subscription = {"topic": "projects/shop/topics/orders", "filter": 'attributes.kind = "none"'}
    for number in range(2):
        api.create(f"subscriptions/filtered-{number}", subscription)
    assert api.post(PUBLISH, BODY).status == 200
    monkeypatch.setattr("deliveries.publish.writer.MAX_FILTERED", 2)
    assert api.post(PUBLISH, BODY).status == 200
    assert api.outcomes == ["direct", "given back"]


def test_a_request_with_many_deliveries_is_given_back(api: DirectApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deliveries.publish.writer.MAX_DELIVERIES", 1)
    assert api.post(PUBLISH, {"messages": [MESSAGE] * 2}).status == 200
    assert api.outcomes == ["given back"]
    assert Delivery.objects.count() == 2


def test_filters_are_applied(api: DirectApi) -> None:
    api.create("subscriptions/some", {"topic": "projects/shop/topics/orders", "filter": 'attributes.a = "2"'})
    api.post(PUBLISH, BODY)
    assert Delivery.objects.count() == 1
    api.post(PUBLISH, {"messages": [{"attributes": {"a": "2"}}]})
    assert Delivery.objects.count() == 3
    assert api.outcomes == ["direct", "direct"]


def test_a_topic_is_read_once_until_it_or_a_subscription_changes(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epoch, "KEPT_SECONDS", 3600.0)
    with direct_api() as api:
        api.create("topics/orders")
        api.create("subscriptions/pulled", {"topic": "projects/shop/topics/orders"})
        assert api.post(PUBLISH, BODY).status == 200
        Subscription.objects.update(detached=True)  # as no process does: no signal is sent
        assert (api.post(PUBLISH, BODY).status, Delivery.objects.count()) == (200, 2)
        Subscription.objects.get().save()
        assert (api.post(PUBLISH, BODY).status, Delivery.objects.count()) == (200, 2)
        topic = Topic.objects.get()
        Subscription.objects.bulk_create([Subscription(project=topic.project, subscription_id="older", topic=topic)])
        assert (api.post(PUBLISH, BODY).status, Delivery.objects.count()) == (200, 3)
        Topic.objects.get().delete()
        assert api.post(PUBLISH, BODY).status == 404


def test_nothing_is_lost_while_redis_is_away(api: DirectApi, settings: Any) -> None:
    settings.REDIS_URL = "unix:///nowhere/redis.sock"
    assert api.post(PUBLISH, BODY).status == 200
    assert api.outcomes == ["direct"]
    assert Delivery.objects.count() == 1


def test_a_connection_that_postgresql_ended_is_replaced(api: DirectApi, monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite has no server that could end a connection")
    # Given a writer that does not look at its connection between two requests
    monkeypatch.setattr("deliveries.publish.writer.CHECK_SECONDS", 1000.0)
    api.post(PUBLISH, BODY)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    answers = [api.post(PUBLISH, BODY) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    assert api.outcomes == ["direct", "given back", "direct"]
    assert Message.objects.count() == 3


def test_publishes_that_are_stored_together_are_told_apart(api: DirectApi, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[list[int]] = []
    monkeypatch.setattr(
        "deliveries.publish.offering.observe",
        lambda events: counted.extend(list(event.publishes) for event in events),
    )

    # Given three publishes to one topic in one round of the event loop, and one to a topic that is missing
    async def publish() -> list[list[str] | None]:
        loop = asyncio.get_running_loop()
        with publish_writer(loop) as writer:
            answers: list[asyncio.Future[list[str] | None]] = [loop.create_future() for _ in range(4)]
            for count, topic, answer in zip(
                (1, 3, 1, 2), ("orders", "orders", "missing", "orders"), answers, strict=True
            ):
                messages = [NewMessage(b"hello", {})] * count
                writer.submit(SmallPublish(None, f"projects/shop/topics/{topic}", messages, "", answer.set_result))
            return await asyncio.gather(*answers)

    first, second, missing, last = asyncio.run(publish())

    # Then each gets the ids of its own messages, in order, and they count as three requests
    assert missing is None
    assert first is not None
    assert second is not None
    assert last is not None
    assert [len(first), len(second), len(last)] == [1, 3, 2]
    ids = [int(name) for name in [*first, *second, *last]]
    assert ids == list(Message.objects.order_by("pk").values_list("pk", flat=True))
    assert counted == [[1, 3, 2]]


def test_concurrent_publishers_all_get_ids_of_their_own(api: DirectApi) -> None:
    api.create("topics/other")
    api.create("subscriptions/ordered", {"topic": "projects/shop/topics/orders", "enableMessageOrdering": True})

    # A puller is there, so all messages wait in Redis
    lane_change(default_backlog(), lane(), pumped_ms=time.time() * 1000)

    def publish(number: int) -> list[str]:
        topic = "orders" if number % 2 else "other"
        ids: list[str] = api.post(f"topics/{topic}:publish", BODY).body["messageIds"]
        return ids

    with ThreadPoolExecutor(16) as pool:
        ids = [int(name) for names in pool.map(publish, range(200)) for name in names]
    assert set(api.outcomes) == {"direct"}
    assert set(Message.objects.values_list("pk", flat=True)) == set(ids)
    assert len(set(ids)) == 200
    owed = list(Delivery.objects.filter(subscription_id=lane().subscription_id).values_list("message_id", flat=True))
    assert len(owed) == 100
    assert are_known(default_backlog(), lane(), owed) == [True] * 100


def test_a_caller_without_credentials_is_left_to_django_where_nobody_is_anonymous(
    api: DirectApi, settings: Any
) -> None:
    settings.ANONYMOUS = ""
    assert api.post(PUBLISH, BODY).status == 401
    assert api.post(PUBLISH, BODY, Authorization="Bearer nonsense").status == 401
    assert api.outcomes == ["given back", "given back"]


def test_a_change_by_another_process_takes_effect_with_its_answer(redis_url: str) -> None:
    """The server caches callers and decisions for a second, and this test changes them within it."""
    api = Api()
    api.create("topics/orders")
    topic = Topic.objects.get()
    token = create_access_token(member=ADA).token

    with WebServer(redis_url, PUSHHUB_ANONYMOUS="") as server:

        def publish(bearer: str = token) -> int:
            client = http.client.HTTPConnection(*server.address, timeout=60)
            try:
                client.request(
                    "POST", f"/v1/{topic.name}:publish", orjson.dumps(BODY), {"Authorization": f"Bearer {bearer}"}
                )
                return client.getresponse().status
            finally:
                client.close()

        assert publish() == 403
        grants.grant_role(topic, role="roles/pubsub.publisher", member=ADA)
        assert publish() == 200
        api.create("subscriptions/late", {"topic": topic.name})
        assert (publish(), Delivery.objects.count()) == (200, 1)
        grants.revoke_role(topic, role="roles/pubsub.publisher", member=ADA)
        assert publish() == 403
        grants.grant_role(tree.get_resource("projects/shop"), role="roles/pubsub.publisher", member=ADA)
        assert publish() == 200
        revoke_access_token(token=token)
        assert publish() == 401
        other = create_access_token(member=ADA).token
        assert publish(other) == 200
        assert api.delete("topics/orders").status == 200
        assert publish(other) == 404
