"""Neighbours: subscriptions whose pages the database reads slowly delay no subscription of another project."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deliveries.backlog.default import default_backlog
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

DEAD_TOPIC, TOPIC = "projects/morgue/topics/orders", "projects/shop/topics/orders"
DEAD_LANES = 20
#: Runs before the worker starts: pages of the subscriptions up to {last} wait for the file {gate}, and plans age fast.
SLOW_PAGES = """
import time
from pathlib import Path
from deliveries.push.sending import plans
from deliveries.store import statements

read = statements.read_pages

def read_slowly(ranges):
    while any(it.subscription_id <= {last} for it in ranges) and not Path({gate!r}).exists():
        time.sleep(0.05)
    return read(ranges)

statements.read_pages = read_slowly
plans.PLAN_SECONDS = 0.3
"""


def publish(topic: str, count: int) -> None:
    publish_message(topic=get_topic(name=topic), messages=[NewMessage(b"x", {})] * count)


def waits(subscription: str) -> bool:
    return Delivery.objects.filter(subscription__subscription_id=subscription).exists()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Path]:
    """A file at which the pages of the dead subscriptions wait until it is there."""
    path = tmp_path / "gate"
    yield path
    path.touch()


@contextmanager
def workers(redis_url: str, gate: Path, count: int) -> Iterator[None]:
    last = Subscription.objects.filter(project__project_id="morgue").latest("id").pk
    first = SLOW_PAGES.format(last=last, gate=str(gate))
    with Worker(redis_url, name="push-1", first=first):
        if count == 1:
            yield
        else:
            with Worker(redis_url, name="push-2", first=first):
                yield


@pytest.mark.parametrize("count", [1, 2], ids=["one worker", "two workers"])
def test_pages_that_the_database_reads_slowly_delay_no_other_project(
    api: Api, redis_url: str, gate: Path, count: int
) -> None:
    with Receiver() as healthy:
        # Given dead subscriptions, whose pages the database keeps back, and a healthy one, none of which Redis knows
        api.create("/v1/" + DEAD_TOPIC)
        for number in range(DEAD_LANES):
            api.create(
                f"/v1/projects/morgue/subscriptions/dead-{number}",
                {"topic": DEAD_TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:1024/"}},
            )
        api.create("topics/orders")
        api.create("subscriptions/healthy", {"topic": TOPIC, "pushConfig": {"pushEndpoint": healthy.url}})
        publish(DEAD_TOPIC, 3)
        publish(TOPIC, 700)
        default_backlog().client.flushall()
        with workers(redis_url, gate, count):
            # Then the healthy one reads its own pages
            wait_for(lambda: not waits("healthy"), what="the healthy subscription's backlog")
            # And its plan is made again and again
            for _ in range(3):
                publish(TOPIC, 1)
                wait_for(lambda: not waits("healthy"), what="the next message")
                healthy.requests.clear()
            gate.touch()
