"""`/metrics`: the counters of several processes, who may read them, and when they disappear."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from django.test import Client

from deliveries.models import Delivery
from deliveries.telemetry.series.gauges import take_gauges
from deliveries.telemetry.series.regiongauges import take_region_gauges
from deliveries.telemetry.sinks import counters as module
from subscriptions.models import Subscription
from tests.integration.telemetry.conftest import Scrape
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
HELLO = '{project="shop",subscription="hello"}'
PULL = 'delivery_type="pull",project="shop",subscription="pull"'


def publish(api: Api, count: int) -> None:
    data = base64.b64encode(b"12345").decode()
    assert api.post("topics/orders:publish", {"messages": [{"data": data}] * count}).status == 200


def flush() -> None:
    """Write this process's counters to Redis."""
    process_counters = module.counters()
    assert process_counters is not None
    process_counters.flush()


def test_attempts_of_a_worker_process_and_publishes_of_this_one_are_counted(
    api: Api, redis_url: str, scrape: Scrape
) -> None:
    api.create("topics/orders")
    with Receiver(default=204) as receiver, Worker(redis_url):
        receiver.script([503])
        retry_policy = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
        push_config = {"pushEndpoint": receiver.url}
        api.create("subscriptions/hello", {"topic": TOPIC, "pushConfig": push_config, "retryPolicy": retry_policy})
        publish(api, 3)
        acks = 'pushhub_subscription_ack_message_count{delivery_type="push",project="shop",subscription="hello"}'
        wait_for(lambda: scrape().get(acks) == 3, what="three acks in /metrics")
    flush()
    values = scrape()
    name = "pushhub_subscription_push_request_count"
    labels = 'project="shop",response_class="{}",subscription="hello"}}'
    assert values[f'{name}{{outcome="ack",' + labels.format("ack")] == 3
    assert values[f'{name}{{outcome="nack",' + labels.format("remote_server_5xx")] == 1
    latency = "pushhub_subscription_push_request_latency_seconds"
    assert values[f'{latency}_count{{outcome="ack",project="shop",subscription="hello"}}'] == 3
    assert values[f'{latency}_bucket{{le="+Inf",outcome="ack",project="shop",subscription="hello"}}'] == 3
    assert values[f'{latency}_sum{{outcome="ack",project="shop",subscription="hello"}}'] > 0
    topic = '{project="shop",topic="orders"}'
    assert values[f"pushhub_topic_send_message_operation_count{topic}"] == 3
    assert values[f"pushhub_topic_send_request_count{topic}"] == 1
    assert values[f"pushhub_topic_published_bytes{topic}"] == 15


def test_pulls_and_expired_ack_deadlines_are_counted(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(api, 3)
    pull = {"maxMessages": 10, "returnImmediately": True}
    acked, nacked, _ = api.post("subscriptions/pull:pull", pull).body["receivedMessages"]
    api.post("subscriptions/pull:acknowledge", {"ackIds": [acked["ackId"]]})
    api.post("subscriptions/pull:modifyAckDeadline", {"ackIds": [nacked["ackId"]], "ackDeadlineSeconds": 0})
    _end_leases()
    assert len(api.post("subscriptions/pull:pull", pull).body["receivedMessages"]) == 2
    flush()
    values = scrape()
    assert values[f"pushhub_subscription_sent_message_count{{{PULL}}}"] == 5
    assert values[f"pushhub_subscription_ack_message_count{{{PULL}}}"] == 1
    assert values[f"pushhub_subscription_nack_message_count{{{PULL}}}"] == 1
    assert values[f"pushhub_subscription_expired_ack_deadlines_count{{{PULL}}}"] == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_an_ack_that_ends_no_delivery_is_not_counted(api: Api, scrape: Scrape, ordered: bool) -> None:
    # Given an ack of a message that was acknowledged before, and a late one of a message that nobody acknowledged
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC, "enableMessageOrdering": ordered})
    api.post("topics/orders:publish", {"messages": [{"data": "aA==", "orderingKey": "key" * ordered}] * 3})
    pull = {"maxMessages": 10, "returnImmediately": True}
    ack_ids = [each["ackId"] for each in api.post("subscriptions/pull:pull", pull).body["receivedMessages"]]
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids[2:] * 2})
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids[2:]})
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids[1:]})
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids[1:]})
    _end_leases()
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids})
    api.post("subscriptions/pull:acknowledge", {"ackIds": ack_ids})
    flush()
    assert scrape()[f"pushhub_subscription_ack_message_count{{{PULL}}}"] == 3
    assert not Delivery.objects.exists()


def _end_leases() -> None:
    from deliveries.backlog.default import default_backlog

    client = default_backlog().client
    key = f"ph:{Subscription.objects.get().pk}:local:l"
    for name in client.zrange(key, 0, -1):  # type: ignore[union-attr]
        client.zadd(key, {name: 1})


def test_gauges_and_deleted_subscriptions(api: Api, scrape: Scrape) -> None:
    api.create("topics/orders")
    api.create("subscriptions/hello", {"topic": TOPIC})
    publish(api, 2)
    api.post("subscriptions/hello:pull", {"maxMessages": 1, "returnImmediately": True})
    take_gauges()
    flush()
    values = scrape()
    assert values[f"pushhub_subscription_num_undelivered_messages{HELLO}"] == 2
    assert f"pushhub_subscription_oldest_unacked_message_age_seconds{HELLO}" in values
    assert values['pushhub_component_up{component="database"}'] == 1
    assert values['pushhub_component_up{component="push_workers"}'] == 0
    sent = 'pushhub_subscription_sent_message_count{delivery_type="pull",project="shop",subscription="hello"}'
    assert values[sent] == 1
    api.delete("subscriptions/hello")
    assert not [key for key in scrape() if 'subscription="hello"' in key]


def test_beyond_the_limit_resources_are_added_up(api: Api, scrape: Scrape, settings: Any) -> None:
    settings.METRICS_RESOURCES = 1
    for name in ("orders", "bills", "carts"):
        api.create(f"topics/{name}")
        data = base64.b64encode(b"1").decode()
        assert api.post(f"topics/{name}:publish", {"messages": [{"data": data}]}).status == 200
    flush()
    values = scrape()
    name = "pushhub_topic_send_message_operation_count"
    assert values[f'{name}{{project="shop",topic="orders"}}'] == 1
    assert values[f'{name}{{project="other",topic="other"}}'] == 2
    assert len([key for key in values if key.startswith(f"{name}{{")]) == 2


def test_dead_letters_are_counted_from_zero(api: Api, scrape: Scrape) -> None:
    """Given a subscription with a dead-letter policy, then it has a counter before its first dead letter.

    A counter that begins above zero has no increase, so an alert would not see the first dead letters.
    """
    for topic in ("orders", "dead"):
        api.create(f"topics/{topic}")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    api.create("subscriptions/hello", {"topic": TOPIC, "deadLetterPolicy": policy})
    api.create("subscriptions/other", {"topic": TOPIC})
    name = "pushhub_subscription_dead_letter_message_count"

    assert {key: value for key, value in scrape().items() if key.startswith(name)} == {f"{name}{HELLO}": 0}


def test_the_resources_with_counters_of_their_own_have_gauges(api: Api, scrape: Scrape, settings: Any) -> None:
    """Given two subscriptions and room for one, when gauges are read, then they are of the first, as counters are."""
    settings.METRICS_RESOURCES = 1
    api.create("topics/orders")
    for name in ("zebra", "aardvark"):
        api.create(f"subscriptions/{name}", {"topic": TOPIC})
    publish(api, 1)
    take_gauges()
    take_region_gauges()
    values = scrape()
    waiting = {key for key in values if key.startswith("pushhub_subscription_num_undelivered_messages")}
    assert waiting == {'pushhub_subscription_num_undelivered_messages{project="shop",subscription="zebra"}'}
    size = 'pushhub_subscription_backlog_bytes{project="shop",region="local",subscription="zebra"}'
    assert {key for key in values if key.startswith("pushhub_subscription_backlog_bytes")} == {size}
    assert 'pushhub_topic_num_retained_messages{project="shop",region="local",topic="orders"}' in values


@pytest.mark.parametrize("setting", ["HTTP_ADDRESS", "GRPC_ADDRESS"])
def test_metrics_require_the_token_from_other_machines(metrics_on: None, settings: Any, setting: str) -> None:
    setattr(settings, setting, ("0.0.0.0", 8000))
    response = Client().get("/metrics")
    assert (response.status_code, response["WWW-Authenticate"]) == (401, 'Bearer realm="pushhub metrics"')
    settings.METRICS_TOKEN = "secret-of-prometheus"
    for header, status in (("", 401), ("Bearer wrong", 401), ("Bearer secret-of-prometheus", 200)):
        assert Client().get("/metrics", headers={"Authorization": header}).status_code == status


def test_behind_a_proxy_the_token_is_required_from_loopback_too(metrics_on: None, settings: Any) -> None:
    settings.BEHIND_PROXY = True
    assert Client().get("/metrics").status_code == 401
    settings.BEHIND_PROXY = False
    assert Client().get("/metrics").status_code == 200
    settings.METRICS_TOKEN = "secret-of-prometheus"
    assert Client().get("/metrics").status_code == 401


def test_a_superusers_session_may_read_metrics_and_other_staff_may_not(
    api: Api, metrics_on: None, settings: Any
) -> None:
    settings.HTTP_ADDRESS = ("0.0.0.0", 8000)
    api.sign_in("ada@example.com")
    assert api.client.get("/metrics").status_code == 401
    api.sign_in("root@example.com", is_superuser=True)
    assert api.client.get("/metrics").status_code == 200


def test_switched_off_there_are_no_metrics(api: Api, redis_url: str) -> None:
    assert Client().get("/metrics").status_code == 404
