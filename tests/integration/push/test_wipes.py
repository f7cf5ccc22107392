"""The order of keys while Redis loses its data again and again, in the midst of page reads that are made slow.

ROUNDS in the environment says how often each fault is tried; with 13 there are 52 trials.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable

import pytest
import redis

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from tests.integration.push.test_delivery import own_redis as own_redis
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
KEYS = "abcd"
#: Messages of a key before a wipe, and after it.
BEFORE, AFTER = 30, 5
ROUNDS = int(os.environ.get("ROUNDS", "1"))
#: Makes a worker's reads of pages take 0.05 to 0.4 s longer than the database needs.
SLOW_PAGES = """
import random, time
from deliveries.store import statements
read_pages = statements.read_pages
def read_slowly(ranges):
    pages = read_pages(ranges)
    time.sleep(random.uniform(0.05, 0.4))
    return pages
statements.read_pages = read_slowly
"""


def flush_all(server: RedisServer, client: redis.Redis) -> None:
    client.flushall()


def flush_all_and_scripts(server: RedisServer, client: redis.Redis) -> None:
    client.flushall()
    client.function_flush()


def flush_all_and_cut_connections(server: RedisServer, client: redis.Redis) -> None:
    client.flushall()
    client.client_kill_filter(_type="normal", skipme=True)


def kill_and_restart(server: RedisServer, client: redis.Redis) -> None:
    server.stop()
    server.start()


FAULTS = [flush_all, flush_all_and_scripts, flush_all_and_cut_connections, kill_and_restart]


@pytest.mark.parametrize("fault", FAULTS)
def test_keys_keep_their_order_while_redis_loses_its_data(
    fault: Callable[[RedisServer, redis.Redis], None], receiver: Receiver, own_redis: RedisServer
) -> None:
    api = Api()
    api.put("topics/orders", {})
    push = {"pushConfig": {"pushEndpoint": receiver.url}, "enableMessageOrdering": True}
    api.create("subscriptions/push", {"topic": TOPIC} | push)
    small = {"PUSHHUB_BACKLOG_LIMIT": "20"}
    with (
        redis.Redis.from_url(own_redis.url) as client,
        Worker(own_redis.url, first=SLOW_PAGES, **small),
        Worker(own_redis.url, first=SLOW_PAGES, name="second", **small),
    ):
        for number in range(ROUNDS):
            dice = random.Random(number)
            receiver.requests.clear()
            publish(range(BEFORE))
            receiver.wait(dice.randrange(1, BEFORE * len(KEYS) // 2))
            fault(own_redis, client)
            publish(range(BEFORE, BEFORE + AFTER))
            wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
            assert not inversions(receiver.requests), f"round {number}"


def publish(numbers: range) -> None:
    for number in numbers:
        for key in KEYS:
            publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {"n": str(number)}, key)])


def inversions(requests: Iterable[Request]) -> dict[str, list[int]]:
    """Return what came of each key that got a message after a later one of it."""
    received: dict[str, list[int]] = defaultdict(list)
    for request in requests:
        message = request.json["message"]
        received[message["orderingKey"]].append(int(message["attributes"]["n"]))
    return {key: numbers for key, numbers in received.items() if numbers != sorted(numbers)}
