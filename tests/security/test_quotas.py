"""Quotas of projects: a project over its quota is refused in Cloud Pub/Sub's words, and no other project notices."""

from __future__ import annotations

import base64
from typing import Any

import grpc
import pytest
import redis
from google.protobuf import any_pb2
from google.pubsub_v1.types import pubsub
from google.rpc import error_details_pb2, status_pb2
from pytest_django.live_server_helper import LiveServer

from deliveries.models import Message
from subscriptions import quotas
from subscriptions.models import Project
from tests.grpcservers import GrpcServer
from tests.restapi import Answer, Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

HELLO = base64.b64encode(b"hello").decode()
ALL = [quotas.ADMINISTRATOR, quotas.PUBLISH_REQUESTS, quotas.PUBLISHER, quotas.SUBSCRIBER, quotas.ORDERING_KEY]


@pytest.fixture
def shop(api: Api, redis_url: str, settings: Any) -> Api:
    """Create a topic and a subscription, without any quota."""
    api.put("topics/orders")
    api.put("subscriptions/worker", {"topic": "projects/shop/topics/orders"})
    settings.QUOTAS = True
    for quota in ALL:
        setattr(settings, quota.setting, 0)
    return api


def publish(api: Api, size: int = 5, *, key: str = "", topic: str = "topics/orders") -> Answer:
    data = base64.b64encode(bytes(size)).decode()
    return api.post(f"{topic}:publish", {"messages": [{"data": data, "orderingKey": key}]})


def let_minutes_pass(redis_url: str, *, minutes: int = 1) -> None:
    """Let minutes pass for every bucket. With fewer than none, the clock was set back."""
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter(match="ph:quota:*"):
            client.hincrbyfloat(key, "bt", -60_000 * minutes)


def test_a_publish_over_the_quota_of_requests_is_refused_in_productions_words(shop: Api, settings: Any) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    assert publish(shop).status == 200
    answer = publish(shop)
    number = Project.objects.get(project_id="shop").number
    assert (answer.status, answer.error["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert answer.error["message"] == (
        "Quota exceeded for quota metric 'Publish requests' and limit 'Publish requests per minute' of service "
        f"'pubsub.googleapis.com' for consumer 'project_number:{number}'."
    )
    [details] = answer.error["details"]
    assert (details["reason"], details["domain"]) == ("RATE_LIMIT_EXCEEDED", "googleapis.com")
    assert details["metadata"] == {
        "consumer": f"projects/{number}",
        "quota_limit": "publishrequestsPerMinutePerProject",
        "quota_limit_value": "1",
        "quota_location": "local",
        "quota_metric": "pubsub.googleapis.com/publishrequests",
        "service": "pubsub.googleapis.com",
    }
    assert Message.objects.count() == 1


def test_a_quota_comes_back_with_time(shop: Api, settings: Any, redis_url: str) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    assert [publish(shop).status for _ in range(2)] == [200, 429]
    let_minutes_pass(redis_url)
    assert [publish(shop).status for _ in range(2)] == [200, 429]


def test_nobody_waits_for_a_clock_that_was_set_back(shop: Api, settings: Any, redis_url: str) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    assert [publish(shop).status for _ in range(2)] == [200, 429]
    let_minutes_pass(redis_url, minutes=-60)
    assert [publish(shop).status for _ in range(2)] == [200, 429]


def test_a_quota_is_of_one_project(shop: Api, settings: Any) -> None:
    shop.put("/v1/projects/depot/topics/orders")
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    assert [publish(shop).status for _ in range(2)] == [200, 429]
    assert publish(shop, topic="/v1/projects/depot/topics/orders").status == 200


def test_throughput_is_counted_in_kilobytes_and_each_request_as_one_at_least(
    shop: Api, settings: Any, redis_url: str
) -> None:
    settings.QUOTA_PUBLISHER_KB_PER_MINUTE = 3
    assert [publish(shop, size).status for size in (1500, 10, 10)] == [200, 200, 429]
    let_minutes_pass(redis_url)
    assert publish(shop, 30_000).status == 200, "a full bucket also allows a request that is larger than the bucket"
    let_minutes_pass(redis_url)
    assert publish(shop).status == 429, "the bucket has to fill up first"


def test_an_ordering_key_has_a_throughput_of_its_own(shop: Api, settings: Any) -> None:
    settings.QUOTA_ORDERING_KEY_KB_PER_SECOND = 1000
    assert publish(shop, 5_000_000, key="a").status == 200
    refused = publish(shop, key="a")
    assert refused.error["details"][0]["metadata"]["quota_metric"].endswith("/orderingkeypublisher")
    assert publish(shop, key="b").status == 200
    assert publish(shop).status == 200


def test_a_refused_request_takes_nothing_of_its_other_quotas(shop: Api, settings: Any, redis_url: str) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 2
    settings.QUOTA_PUBLISHER_KB_PER_MINUTE = 1
    assert [publish(shop).status for _ in range(5)] == [200, 429, 429, 429, 429]
    settings.QUOTA_PUBLISHER_KB_PER_MINUTE = 0
    assert publish(shop).status == 200


def test_administration_has_a_quota_that_moving_messages_does_not_use(shop: Api, settings: Any) -> None:
    settings.QUOTA_ADMINISTRATOR_PER_MINUTE = 1
    assert shop.get("topics/orders").status == 200
    answer = shop.put("topics/more")
    assert answer.status == 429
    assert "'Administrator operations per minute'" in answer.error["message"]
    assert publish(shop).status == 200
    number = Project.objects.get(project_id="shop").number
    assert shop.get(f"/v1/projects/{number}/topics/orders").status == 429, "the number stands for the same project"
    for odd in ("²", "9" * 5000):
        assert shop.get(f"/v1/projects/{odd}/topics/orders").status in (400, 404), odd


def test_a_call_that_is_not_allowed_takes_nothing_of_a_quota(shop: Api, settings: Any) -> None:
    """Otherwise strangers could use up another tenant's quota."""
    settings.QUOTA_ADMINISTRATOR_PER_MINUTE = 1
    eve = Api()
    eve.sign_in("eve@example.com")
    assert [eve.delete("topics/orders").status for _ in range(3)] == [403] * 3
    assert shop.get("topics/orders").status == 200


def test_subscribers_have_a_throughput(shop: Api, settings: Any) -> None:
    settings.QUOTA_SUBSCRIBER_KB_PER_MINUTE = 10
    publish(shop, 20_000)
    pull = {"maxMessages": 10, "returnImmediately": True}
    assert len(shop.post("subscriptions/worker:pull", pull).body["receivedMessages"]) == 1
    answer = shop.post("subscriptions/worker:pull", pull)
    assert (answer.status, answer.error["status"]) == (429, "RESOURCE_EXHAUSTED")


def test_publishing_goes_on_while_redis_is_away(shop: Api, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    away = quotas.Buckets("unix:///nowhere/redis.sock")
    monkeypatch.setattr(quotas, "_buckets", lambda url: away)
    assert [publish(shop).status for _ in range(3)] == [200] * 3


def test_quotas_are_off_by_default(shop: Api, settings: Any) -> None:
    settings.QUOTAS = False
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = settings.QUOTA_ADMINISTRATOR_PER_MINUTE = 1
    assert [publish(shop).status for _ in range(3)] == [200] * 3
    assert [shop.get("topics/orders").status for _ in range(3)] == [200] * 3


def test_grpc_shares_the_buckets(shop: Api, settings: Any, redis_url: str, live_server: LiveServer) -> None:
    settings.QUOTA_PUBLISH_REQUESTS_PER_MINUTE = 1
    assert publish(shop).status == 200
    more = {"PUSHHUB_QUOTAS": "on", "PUSHHUB_QUOTA_PUBLISH_REQUESTS_PER_MINUTE": "1"}
    with (
        GrpcServer(redis_url, rest=live_server.url, **more) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        call = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
        request = pubsub.PublishRequest.pb()(topic="projects/shop/topics/orders", messages=[{"data": b"hello"}])
        with pytest.raises(grpc.RpcError) as caught:
            call(request.SerializeToString(), timeout=30)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    [detail] = status_of(caught.value).details
    info = error_details_pb2.ErrorInfo()
    assert any_pb2.Any.Unpack(detail, info)
    assert info.metadata["quota_metric"] == "pubsub.googleapis.com/publishrequests"


def status_of(error: Any) -> status_pb2.Status:
    return status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
