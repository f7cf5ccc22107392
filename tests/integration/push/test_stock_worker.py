"""A stock Celery worker delivers by the same law as a push worker, and without one."""

from __future__ import annotations

import base64
from collections import defaultdict

import pytest

from deliveries.backlog import reconcile, workerverbs
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.models import Delivery
from deliveries.rules.taskmessage import queue_name
from tests.lanes import low_queue
from tests.ports import wait_for
from tests.receiver import Answer, Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
LETTERS = "projects/shop/topics/letters"


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_it_retries_on_quiet_lanes_in_order_and_dead_letters(redis_url: str, pool: str) -> None:
    # Given an ordered subscription whose endpoint refuses each message once, and one whose endpoint refuses everything
    attempts: dict[str, int] = defaultdict(int)

    def refuse_once(request: Request) -> int:
        if request.path.endswith("/never"):
            return 503
        message = request.json["message"]["data"]
        attempts[message] += 1
        return 503 if attempts[message] == 1 else 204

    api = Api()
    for topic in ("orders", "letters"):
        api.create(f"topics/{topic}")
    api.create("subscriptions/letters", {"topic": LETTERS, "ackDeadlineSeconds": 600})  # none comes twice
    policy = {"deadLetterTopic": LETTERS, "maxDeliveryAttempts": 5}
    with Receiver(default=refuse_once) as receiver:
        ordered = {"pushConfig": {"pushEndpoint": receiver.url}, "enableMessageOrdering": True}
        refused = {"pushConfig": {"pushEndpoint": f"{receiver.url}/never"}, "deadLetterPolicy": policy}
        api.create("subscriptions/ordered", {"topic": TOPIC, **ordered})
        api.create("subscriptions/refused", {"topic": TOPIC, **refused})
        texts = [base64.b64encode(text.encode()).decode() for text in ("one", "two", "three")]
        # When a stock worker alone serves the region
        with Worker(redis_url, stock=True, options=["-P", pool, "-c", "2"]) as worker:
            api.post("topics/orders:publish", {"messages": [{"data": text, "orderingKey": "k"} for text in texts]})
            letters: list[str] = []

            def pull_letters() -> bool:
                body = {"maxMessages": 10, "returnImmediately": True}
                answer = api.post("subscriptions/letters:pull", body)
                received = answer.body.get("receivedMessages", [])
                letters.extend(message["message"]["data"] for message in received)
                return len(letters) >= 3

            wait_for(pull_letters, what="the dead letters")
            wait_for(lambda: len(requests_to(receiver, "/push")) == 6, what="the retries")
            # Then it counts as a worker of its region
            names = [name.decode() for name in client_of(redis_url).zrange("ph:workers", 0, -1)]
            assert [name.partition(":")[0] for name in names] == ["push@test"]
            assert "stock-waker" in worker.celery("inspect", "threads")
    # And each message of the key came twice before the next one, and the others five times before the dead-letter topic
    assert requests_to(receiver, "/push") == [text for text in texts for _ in range(2)]
    assert sorted(requests_to(receiver, "/push/never")) == sorted(texts * 5)
    assert sorted(letters) == sorted(texts)
    assert not client_of(redis_url).zrange("ph:workers", 0, -1)


def test_what_a_killed_one_had_is_found_by_the_audit(
    redis_url: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "LOST_MS", 0)
    receiver.script([Answer(204, delay_seconds=300)])  # until the receiver stops
    api = Api()
    api.create("topics/orders")
    config = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}, "ackDeadlineSeconds": 600}
    api.create("subscriptions/push", config)
    api.post("topics/orders:publish", {"messages": [{"data": "eA=="}]})
    # Given a worker that pushes a message
    with Worker(redis_url, stock=True) as worker:
        wait_for(lambda: receiver.outstanding == 1, what="the push")
        assert [reconcile.audit_tokens() for _ in range(2)] == [0, 0]
        # When it is killed and counts as dead
        worker.kill()
    monkeypatch.setattr(workerverbs, "DEAD_AFTER_MS", 0)
    default_backlog().beat()
    # Then nobody holds its token, and another worker pushes it
    assert [reconcile.audit_tokens() for _ in range(2)] == [0, 1]
    with Worker(redis_url, stock=True):
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")
    assert len(receiver.requests) == 2


def test_a_copy_of_what_is_settled_is_not_pushed_again(redis_url: str, receiver: Receiver) -> None:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    api.post("topics/orders:publish", {"messages": [{"data": "eA=="}]})
    # Given a task that kombu brings a second time, as it does an hour after its worker was killed
    client = client_of(redis_url)
    [task] = client.lrange(low_queue("local"), 0, -1)
    with Worker(redis_url, stock=True):
        wait_for(lambda: not Delivery.objects.exists(), what="the ack")
        client.lpush(queue_name("local"), task)
        wait_for(lambda: not client.exists(queue_name("local"), "unacked"), what="the end of the copy")
    assert len(receiver.requests) == 1


def test_a_change_counts_from_the_next_message_on(redis_url: str, receiver: Receiver) -> None:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": f"{receiver.url}/old"}})
    with Worker(redis_url, stock=True):
        api.post("topics/orders:publish", {"messages": [{"data": "b25l"}]})
        wait_for(lambda: not Delivery.objects.exists(), what="the first ack")
        config = {"pushConfig": {"pushEndpoint": f"{receiver.url}/new"}}
        assert api.post("subscriptions/push:modifyPushConfig", config).status == 200
        api.post("topics/orders:publish", {"messages": [{"data": "dHdv"}]})
        wait_for(lambda: not Delivery.objects.exists(), what="the second ack")
    assert requests_to(receiver, "/push/old") == ["b25l"]
    assert requests_to(receiver, "/push/new") == ["dHdv"]


def requests_to(receiver: Receiver, path: str) -> list[str]:
    """Return the data of the messages that were pushed to a path, in order."""
    return [request.json["message"]["data"] for request in receiver.requests if request.path == path]
