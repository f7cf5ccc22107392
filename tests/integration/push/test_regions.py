"""Regions without a worker of their own: operators are warned, and other workers deliver their messages."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deliveries.backlog.connection import server_ms
from deliveries.backlog.default import default_backlog
from deliveries.backlog.regions import Unserved, audit_regions, regions_to_adopt, regions_unserved
from deliveries.backlog.workerverbs import DEAD_AFTER_MS, HEARD_MS
from deliveries.models import Delivery, GaugeMinute
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.series.gauges import take_gauges
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api, root_client
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def waiting(api: Api, redis_url: str, receiver: Receiver) -> list[str]:
    """Messages of the region `local`."""
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    return publish(5)


def publish(count: int) -> list[str]:
    return publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * count)


def last_served(region: str, *, seconds_ago: float) -> None:
    default_backlog().client.zadd("ph:regions", {region: (time.time() - seconds_ago) * 1000})


def test_a_worker_of_another_region_delivers_waiting_messages(
    waiting: list[str], redis_url: str, receiver: Receiver, settings: Any
) -> None:
    # Given messages of a region whose workers are gone, as after a change of PUSHHUB_REGION
    last_served("local", seconds_ago=20)
    with Worker(redis_url, region="europe") as worker:
        # When a worker of another region starts, then the messages arrive
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")
        assert "regions of other workers that this worker serves now: local" in worker.log
        # And once no messages are left, the audit and the worker forget the region
        settings.REGIONS = ["europe"]
        audit_regions()
        wait_for(lambda: "this worker serves now: none" in worker.log, what="the end of that")
    assert {request.json["message"]["messageId"] for request in receiver.requests} == set(waiting)


def test_a_worker_does_not_take_its_own_region_over_after_a_long_stop(
    waiting: list[str], redis_url: str, receiver: Receiver
) -> None:
    last_served("local", seconds_ago=3600)
    with Worker(redis_url) as worker:
        wait_for(lambda: not Delivery.objects.exists(), what="the acks")
        wait_for(lambda: "local" not in default_backlog().regions_silent(), what="a heartbeat for the region")
        assert "serves now" not in worker.log


def test_a_region_is_taken_over_after_its_time(settings: Any) -> None:
    settings.REGIONS = ["local", "europe"]
    settings.REGION_TAKEOVER_SECONDS = 60
    assert regions_to_adopt({"europe": 59.0, "gone": 16.0}) == ("gone",)
    assert regions_to_adopt({"europe": 60.0, "gone": 16.0}) == ("europe", "gone")


def test_the_audit_warns_of_a_region_with_messages_and_no_worker(
    waiting: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a region in which messages have just been found
    audit_regions()
    assert regions_unserved() == []
    # As nobody has served it, it counts as served no longer than a living worker takes to be heard of
    client = default_backlog().client
    served_ms = client.zscore("ph:regions", "local")
    assert server_ms(client) - served_ms >= DEAD_AFTER_MS - HEARD_MS
    # When no worker of the region has been alive for a while
    last_served("local", seconds_ago=100.5)
    audit_regions()
    # Then the log and the console report the region
    assert "no worker of region local has lived for 100 s; backlogs that wait there: 1;" in caplog.text
    assert regions_unserved() == [Unserved("local", 100, 1)]
    take_gauges()
    assert GaugeMinute.objects.get(resource="projects/shop/subscriptions/push").unserved == 5
    console = root_client()
    page = console.get("/admin/deliveries/segment/").content.decode()
    assert "No push worker of region local has lived for 100 s. Backlogs that wait there: 1." in page
    # Until a worker of the region lives
    default_backlog().beat("w", regions=["local"])
    audit_regions()
    assert regions_unserved() == []


def test_a_region_that_only_pullers_use_needs_no_worker(api: Api, redis_url: str) -> None:
    api.create("topics/orders")
    api.create("subscriptions/pull", {"topic": TOPIC})
    publish(5)
    last_served("local", seconds_ago=100)
    audit_regions()
    assert regions_unserved() == []
