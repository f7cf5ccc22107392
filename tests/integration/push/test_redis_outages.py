"""Whatever happens to Redis, Celery's workers wait for its end: those that push, and those of timed tasks with beat."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from deliveries.backlog.regions import KEY as AUDIT_KEY
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.outages import Cause
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.redisoutages import CAUSES, Outage, hanging
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

TOPIC = "projects/shop/topics/orders"
#: On a busy machine beat's tasks expire, of each of which Celery has a line of INFO.
LINE = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ (?!INFO )", re.MULTILINE)
#: As in pushhub/runtime/processes.py.
ALONE = ["--without-gossip"]
#: A hanging Redis is an outage sooner, and beat starts each task every second.
IMPATIENT = """
import deliveries.backlog.connection
deliveries.backlog.connection.SOCKET_TIMEOUT_SECONDS = 1
from pushhub.celery import app
for entry in app.conf.beat_schedule.values():
    entry["schedule"] = 1
"""


@contextmanager
def workers(url: str) -> Iterator[list[Worker]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Worker(url, options=ALONE, first=IMPATIENT)),
            stack.enter_context(
                Worker(url, name="maintenance", queue="maintenance", beat=True, options=ALONE, first=IMPATIENT)
            ),
        ]


def publish(count: int) -> set[str]:
    return set(publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * count))


def is_noted(worker: Worker, cause: Cause) -> bool:
    """Return whether the worker has a line about the outage; Celery has one of its own for a lost connection."""
    return f" {cause}: " in worker.log


@pytest.mark.parametrize("outage", CAUSES, ids=lambda outage: outage.__name__)
def test_no_outage_of_redis_ends_a_worker(
    redis_url: str, receiver: Receiver, settings: Any, tmp_path: Path, outage: Outage
) -> None:
    cause = CAUSES[outage]
    with RedisServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        settings.REDIS_URL = server.url
        api = Api()
        api.create("topics/orders")
        api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
        with workers(server.url) as (push, maintenance):
            published = publish(3)
            wait_for(lambda: not Delivery.objects.exists(), what="the first messages")
            with outage(server):
                wait_for(partial(is_noted, push, cause), what=cause)
                if outage is not hanging:  # a worker without a task would wait for long
                    wait_for(partial(is_noted, maintenance, cause), what=cause)
                published |= publish(3)
            wait_for(lambda: not Delivery.objects.exists(), what="the messages of the outage")
            client.delete(AUDIT_KEY)
            wait_for(lambda: client.exists(AUDIT_KEY), what="an audit")
            published |= publish(3)
            wait_for(lambda: not Delivery.objects.exists(), what="the last messages")
            for worker in (push, maintenance):
                assert worker.process.poll() is None
                assert "Traceback" not in worker.log
                assert len(LINE.findall(worker.log)) < 15, worker.log
    assert {request.json["message"]["messageId"] for request in receiver.requests} == published
