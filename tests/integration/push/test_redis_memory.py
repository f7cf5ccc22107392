"""The memory that Redis takes for messages whose endpoints are down."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanestate import LaneState
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.integration.push.test_delivery import own_redis as own_redis
from tests.lanes import lane_state
from tests.ports import free_port, wait_for
from tests.receiver import Receiver
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
SUBSCRIPTIONS, MESSAGES = 50, 1000


def test_endpoints_that_are_down_leave_redis_nearly_empty(own_redis: RedisServer) -> None:
    """Redis took 63 MB for these 50,000 messages, and in proportion for more."""
    # Given 50 subscriptions of a topic, all of whose endpoints are down
    api = Api()
    api.put("topics/orders", {})
    push = {"pushEndpoint": f"http://127.0.0.1:{free_port()}/"}
    for number in range(SUBSCRIPTIONS):
        api.create(f"subscriptions/push-{number}", {"topic": TOPIC, "pushConfig": push})
    with redis.Redis.from_url(own_redis.url) as client, Worker(own_redis.url):
        # When 1,000 messages of 0.3 kB are published
        client.config_resetstat()
        before = client.info("memory")["used_memory"]
        for start in range(0, MESSAGES, 100):
            messages = [NewMessage(b"x" * 300, {"n": str(start + n)}) for n in range(100)]
            publish_message(topic=get_topic(name=TOPIC), messages=messages)
        wait_for(lambda: all(map(is_down, states())), what="the push backoff of every lane")
        memory = client.info("memory")
    # Then Redis has a handful of each, and has never had much more, and the database has all
    assert memory["used_memory"] - before < 3_000_000
    assert memory["used_memory_peak"] - before < 6_000_000
    assert Delivery.objects.count() == SUBSCRIPTIONS * MESSAGES


def states() -> list[LaneState]:
    return [lane_state(default_backlog(), lane) for lane in default_backlog().lanes()]


def is_down(state: LaneState) -> bool:
    """Return whether the lane has come to pauses of more than a second."""
    return state.flow.backoff_level > 7


def test_messages_beyond_the_budget_wait_in_the_database_and_arrive(
    own_redis: RedisServer, receiver: Receiver, settings: Any
) -> None:
    # Given a budget of 1 MB, and ten subscriptions without a push worker
    settings.REDIS_MB = 1
    api = Api()
    api.put("topics/orders", {})
    for number in range(10):
        api.create(f"subscriptions/push-{number}", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    with redis.Redis.from_url(own_redis.url) as client:
        before = client.info("memory")["used_memory"]
        # When messages of 8 MB are published to them
        for start in range(0, 200, 20):
            messages = [NewMessage(b"x" * 3000, {"n": str(start + n)}) for n in range(20)]
            publish_message(topic=get_topic(name=TOPIC), messages=messages)
        taken = client.info("memory")["used_memory"] - before
        with Worker(own_redis.url, PUSHHUB_REDIS_MB="1"):
            wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
        # Then Redis keeps to it, each message arrives once, and nothing is counted in the end
        assert taken < 4_000_000
        received = Counter((r.json["subscription"], r.json["message"]["messageId"]) for r in receiver.requests)
        assert (len(received), max(received.values())) == (2000, 1)
        assert int(client.get("ph:bytes") or 0) == 0
