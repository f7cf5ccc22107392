"""`celery inspect` and `celery control` tell the truth about a push worker, or say what to use instead."""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from deliveries.backlog.default import default_backlog
from deliveries.models import Delivery
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database, pytest.mark.usefixtures("redis_url")]

NEVER_SOON = {"minimumBackoff": "500s", "maximumBackoff": "600s"}


def publish_to(api: Api, endpoint: str, **fields: object) -> str:
    """Publish a message to a new push subscription, and return its id."""
    api.create("topics/orders")
    config = {"topic": "projects/shop/topics/orders", "pushConfig": {"pushEndpoint": endpoint}}
    api.create("subscriptions/push", {**config, **fields})
    answer = api.post("topics/orders:publish", {"messages": [{"data": "eA=="}]})
    [message_id] = answer.body["messageIds"]
    return str(message_id)


def test_a_push_under_way_is_active_and_can_be_ended(api: Api, redis_url: str) -> None:
    # Given a push that waits for its answer
    with socket.create_server(("127.0.0.1", 0)) as endpoint, Worker(redis_url) as worker:
        port = endpoint.getsockname()[1]
        message_id = publish_to(api, f"http://127.0.0.1:{port}/", ackDeadlineSeconds=600)
        peer, _ = endpoint.accept()
        with peer:
            assert peer.recv(1)
            # Then it is active, under its subscription's name, and nothing is reserved
            active = worker.celery("inspect", "active")
            assert message_id in active and "projects/shop/subscriptions/push" in active
            assert active.count(f"'id': '{message_id}.") == 1
            assert message_id not in worker.celery("inspect", "reserved")
            [task_id] = re.findall(rf"\b({message_id}\.[^\s'\"]+)", active)
            queried = worker.celery("inspect", "query_task", task_id)
            assert "active" in queried and task_id in queried
            # When somebody ends it, then its connection is closed, and its message is dropped
            assert "1 of them ended here" in worker.celery("control", "terminate", "SIGTERM", task_id)
            with suppress(ConnectionResetError):
                while peer.recv(65536):
                    pass
            wait_for(lambda: not Delivery.objects.exists(), what="the end of the delivery")
            assert message_id not in worker.celery("inspect", "active")


def test_a_retry_is_scheduled_with_its_time_and_the_total(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    message_id = publish_to(api, receiver.url, retryPolicy=NEVER_SOON)
    with Worker(redis_url) as worker:
        wait_for(lambda: message_id in worker.celery("inspect", "scheduled"), what="the retry")
        scheduled = worker.celery("inspect", "scheduled")
        key = f"ph:{Delivery.objects.get().subscription_id}:local:z"
        [(_, due_ms)] = default_backlog().client.zrange(key, 0, 0, withscores=True)
    assert datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds") in scheduled
    assert re.search(r"total'?\"?: 1\b", scheduled)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["rate_limit", "deliveries.deliver", "10/s"], "x-pushhub-rate"),
        (["time_limit", "deliveries.deliver", "10"], "ackDeadlineSeconds"),
    ],
)
def test_what_a_push_worker_cannot_do_is_refused_by_name(redis_url: str, command: list[str], words: str) -> None:
    with Worker(redis_url) as worker:
        reply = worker.celery("control", *command)
    assert words in reply
    assert "success" not in reply


def test_threads_are_a_command(redis_url: str) -> None:
    with Worker(redis_url) as worker:
        assert "push-engine" in worker.celery("inspect", "threads")


@pytest.mark.parametrize("stock", [False, True], ids=["push worker", "stock worker"])
def test_a_delivery_is_sent_by_hand(api: Api, receiver: Receiver, redis_url: str, stock: bool) -> None:
    # Given a delivery whose next attempt is minutes away
    receiver.default = 503
    message_id = publish_to(api, receiver.url, retryPolicy=NEVER_SOON)
    with Worker(redis_url, stock=stock) as worker:
        wait_for(lambda: Delivery.objects.filter(attempts=1).exists(), what="the nack")
        subscription_id = Delivery.objects.get().subscription_id
        retries = f"ph:{subscription_id}:local:z"
        wait_for(lambda: default_backlog().client.exists(retries), what="the retry")
        # When somebody sends it by the ids of its subscription and message, then it is pushed and settled
        receiver.default = 204
        arguments = json.dumps([subscription_id, "local", 2, {"messageId": message_id}])
        worker.celery("call", "deliveries.deliver", "--queue", "deliveries.local", "--args", arguments)
        wait_for(lambda: not Delivery.objects.exists(), what="the ack")
        wait_for(lambda: not default_backlog().client.exists(retries), what="the end of the retry")
    assert len(receiver.requests) == 2
