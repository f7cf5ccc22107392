"""A push worker that is frozen gives its ordering keys up, and what it says when it goes on changes nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from deliveries.backlog.codes import Place
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, Message
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.lanes import lane_state
from tests.ports import wait_for
from tests.receiver import Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

#: No worker counts as dead: whatever is taken over is taken over because a lease has lapsed.
NEVER_DEAD = "from deliveries.backlog import workerverbs; workerverbs.DEAD_AFTER_MS = 10**12"


class Endpoint:
    """Answers each push when the test says so; the first push of a message may get another status than the next."""

    def __init__(self) -> None:
        self.pushes: Counter[str] = Counter()
        self.order: list[str] = []
        #: Status by "<message> <number of the push>".
        self._statuses: dict[str, int] = {}
        self._changed = threading.Condition()
        self._is_open = False

    def __call__(self, request: Request) -> int:
        message = request.json["message"]
        text = f"{message.get('orderingKey', 'plain')}{message['attributes']['n']}"
        with self._changed:
            self.pushes[text] += 1
            self.order.append(text)
            push = f"{text} {self.pushes[text]}"
            self._changed.wait_for(lambda: self._is_open or push in self._statuses, timeout=600)
            return self._statuses.get(push, 204)

    def answer(self, push: str, status: int) -> None:
        with self._changed:
            self._statuses[push] = status
            self._changed.notify_all()

    def open(self) -> None:
        """Ack everything from now on."""
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def wait(self, text: str, count: int = 1) -> None:
        wait_for(lambda: self.pushes[text] == count, what=f"push number {count} of {text}")


@pytest.fixture
def endpoint(redis_url: str) -> Iterator[Endpoint]:
    endpoint = Endpoint()
    with Receiver(endpoint) as receiver:
        api = Api()
        api.create("topics/letters", {})
        policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
        push = {"pushConfig": {"pushEndpoint": receiver.url}, "ackDeadlineSeconds": 600}
        for name, fields in (("ordered", {"enableMessageOrdering": True, "deadLetterPolicy": policy}), ("plain", {})):
            api.create(f"topics/{name}", {})
            api.create(f"subscriptions/{name}", {"topic": f"projects/shop/topics/{name}", **push, **fields})
        yield endpoint
        endpoint.open()


def publish(topic: str, key: str, count: int) -> None:
    messages = [NewMessage(b"x", {"n": str(number)}, key) for number in range(1, count + 1)]
    publish_message(topic=get_topic(name=f"projects/shop/topics/{topic}"), messages=messages)


def lane(name: str) -> Lane:
    return Lane(Subscription.objects.get(subscription_id=name).pk, "local")


def is_idle(worker: Worker) -> bool:
    return '"outstanding": 0' in worker.celery("inspect", "stats", "-d", "first@test")


@pytest.mark.parametrize("late_status", [204, 503])
def test_a_frozen_worker_gives_its_keys_up_and_its_late_answer_changes_nothing(
    endpoint: Endpoint, redis_url: str, late_status: int
) -> None:
    publish("ordered", "k", 4)
    publish("plain", "", 1)
    with Worker(redis_url, name="first") as first:
        endpoint.wait("k1")
        endpoint.wait("plain1")
        # When the worker freezes, another one takes its ordered message over
        first.suspend()
        with Worker(redis_url, name="second", first=NEVER_DEAD):
            endpoint.wait("k1", 2)
            # And when the first worker goes on, with the answers to its pushes
            first.resume()
            endpoint.answer("k1 1", late_status)
            endpoint.answer("plain1 1", 204)
            wait_for(lambda: is_idle(first), what="the results of the first worker")
            # Then k1 is still with the second worker, so that k2 waits
            message = Message.objects.filter(topic__topic_id="ordered").earliest("pk")
            place: Any = default_backlog().client.hget(lane("ordered").places_key, str(message.pk))
            assert place == Place.OUTSTANDING.encode()
            assert lane_state(default_backlog(), lane("ordered")).outstanding == 1
            assert endpoint.pushes["k2"] == 0
            endpoint.open()
            wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
    assert [text for text in endpoint.order if text != "plain1"] == ["k1", "k1", "k2", "k3", "k4"]
    assert endpoint.pushes["plain1"] == 1, "nobody took the plain lane's message over"
    assert not Message.objects.filter(topic__topic_id="letters").exists()


def test_an_ack_that_comes_late_ends_the_attempt_after_it_however_that_ends(endpoint: Endpoint, redis_url: str) -> None:
    """The endpoint took k1 the first time, and refuses it the second time: it is not sent a third time."""
    publish("ordered", "k", 2)
    with Worker(redis_url, name="first") as first:
        endpoint.wait("k1")
        first.suspend()
        with Worker(redis_url, name="second", first=NEVER_DEAD):
            endpoint.wait("k1", 2)
            first.resume()
            endpoint.answer("k1 1", 204)
            wait_for(lambda: Delivery.objects.count() == 1, what="the ack of the first push")
            endpoint.answer("k1 2", 503)
            endpoint.wait("k2")
            endpoint.open()
            wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
    assert endpoint.order == ["k1", "k1", "k2"]
    wait_for(lambda: lane_state(default_backlog(), lane("ordered")).outstanding == 0, what="every token back")
