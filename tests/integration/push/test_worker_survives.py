"""Errors in the push worker's own threads cost at most a delay: nothing is lost and nothing hangs."""

from __future__ import annotations

import resource
import threading

import pytest

from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.celery import app as celery_app
from pushhub.common import background
from pushhub.runtime import processes
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Answer, Receiver, Request
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
DEAD_LETTERS = {
    "deadLetterPolicy": {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5},
    "retryPolicy": {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"},
}


def test_a_worker_may_open_as_many_files_as_the_system_lets_it(redis_url: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (300, {hard}))"
    with Worker(redis_url, first=low) as worker:
        assert resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def publish(topic: str, *payloads: bytes) -> list[str]:
    return publish_message(topic=get_topic(name=topic), messages=[NewMessage(payload, {}) for payload in payloads])


def test_a_subscription_deleted_during_the_last_attempt_stops_no_other(api: Api, redis_url: str) -> None:
    answer_last = threading.Event()
    neighbours = "projects/shop/topics/neighbours"

    def fail(request: Request) -> Answer:
        if request.json["deliveryAttempt"] == 5:
            answer_last.wait(timeout=60)
        return Answer(503)

    with Receiver(fail) as failing, Receiver() as healthy, Worker(redis_url) as worker:
        # Given the fifth of five attempts, still outstanding
        for topic in ("orders", "letters", "neighbours"):
            api.create(f"topics/{topic}")
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": failing.url}, **DEAD_LETTERS})
        api.create("subscriptions/healthy", {"topic": neighbours, "pushConfig": {"pushEndpoint": healthy.url}})
        publish(TOPIC, b"x")
        failing.wait(5)
        # When the subscription is deleted before the endpoint answers
        assert api.delete("subscriptions/push").status == 200
        answer_last.set()
        # Then all messages of the other subscription arrive and are acknowledged
        publish(neighbours, *[b"x"] * 20)
        wait_for(
            lambda: not Delivery.objects.filter(subscription__subscription_id="healthy").exists(),
            what="the neighbour's acks",
        )
        assert worker.process.poll() is None


#: Runs before the worker starts: the preparer hangs, while idle threads report often that they are alive.
PREPARER_HANGS = """
import sys, threading
from deliveries.push import heart
from pushhub.common import background

work = background.BackgroundThread._turn

def work_or_hang(thread):
    if thread.name == "push-preparer":
        threading.Event().wait()
    work(thread)

for module in list(sys.modules.values()):
    if "IDLE_SECONDS" in vars(module) and module.__name__.startswith(("deliveries.", "pushhub.common.")):
        module.IDLE_SECONDS = 0.1
heart.HEARTBEAT_SECONDS = 0.1
background.BackgroundThread._turn = work_or_hang
"""


def test_a_worker_with_a_hanging_thread_is_not_ready(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app = celery_app.__class__("check", broker=f"redis+socket://{redis_url.removeprefix('unix://')}")
    monkeypatch.setattr("pushhub.celery.app", app)
    with Worker(redis_url, first=PREPARER_HANGS) as worker:
        wait_for(lambda: processes.works("push@test"), what="an answer")
        monkeypatch.setattr(background, "STUCK_SECONDS", 4.0)
        stuck = "thread push-preparer of push@test has been stuck"
        wait_for(lambda: not processes.works("push@test") and stuck in caplog.text, what="the silence")
        worker.kill()
    assert not processes.works("push@test"), "a worker that is gone is not ready"
    app.close()
