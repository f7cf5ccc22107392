"""Messages that fail again and again, with a real worker: they hold up neither the others nor their dead letters."""

from __future__ import annotations

from collections import Counter

import pytest

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.lanes import lane_state
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
COUNT = 700


def number(request: Request) -> int:
    return int(request.json["message"]["attributes"]["n"])


def is_poison(request: Request) -> bool:
    return number(request) % 7 == 0


def test_one_poison_message_in_seven_leaves_nine_tenths_of_the_pushes_to_the_others(
    receiver: Receiver, redis_url: str
) -> None:
    api = Api()
    api.create("topics/orders")
    api.create("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
    api.create(
        "subscriptions/worker",
        {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}, "deadLetterPolicy": policy},
    )
    receiver.default = lambda request: 500 if is_poison(request) else 204
    messages = [NewMessage(b"x", {"n": str(n)}) for n in range(COUNT)]
    publish_message(topic=get_topic(name=TOPIC), messages=messages)

    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists(), what="the last ack or dead letter")

    # Each good message was sent once, and each poison message five times: nothing waited for a pause
    attempts = Counter(number(request) for request in receiver.requests)
    assert attempts == {n: 5 if n % 7 == 0 else 1 for n in range(COUNT)}
    # And few of the requests before the last good message were retries
    last_good = max(at for at, request in enumerate(receiver.requests) if not is_poison(request))
    before = [request.json["deliveryAttempt"] for request in receiver.requests[:last_good]]
    assert sum(attempt > 1 for attempt in before) <= 0.15 * COUNT
    # And the lane takes the nacks for what they are
    flow = lane_state(default_backlog(), Lane(Subscription.objects.get(subscription_id="worker").pk, "local")).flow
    assert (flow.poisoned, flow.is_backing_off) == (1, False)
    assert flow.gap_ms < 10


def test_poison_messages_that_are_the_oldest_when_redis_is_built_again_stop_no_others(
    receiver: Receiver, redis_url: str
) -> None:
    # Given 40 messages that have failed three times, 60 that were not tried, and a Redis that knows nothing of them
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/worker", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    messages = [NewMessage(b"x", {"n": str(7 * n if n < 40 else 7 * n + 1)}) for n in range(100)]
    ids = publish_message(topic=get_topic(name=TOPIC), messages=messages)
    Delivery.objects.filter(message_id__in=ids[:40]).update(attempts=3)
    default_backlog().client.flushall()
    receiver.default = lambda request: 500 if is_poison(request) else 204

    # Then the others begin before each of those had its turn, and all go out, though the lane pauses at first
    with Worker(redis_url):
        wait_for(lambda: Delivery.objects.count() == 40, what="the acks of the others")
    first_good = min(at for at, request in enumerate(receiver.requests) if not is_poison(request))
    assert first_good < 40
