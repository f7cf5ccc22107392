"""The console's charts of a subscription, and the warnings about the journal on its pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from deliveries.models import Segment
from deliveries.telemetry.counting.ledger import note_quarantine
from deliveries.telemetry.journal import alarm
from deliveries.telemetry.series.gauges import take_gauges
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from tests.metricrows import add_events
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def subscription(redis_url: str) -> Subscription:
    """A push subscription with a minute of pushes, good and bad."""
    api = Api()
    api.put("topics/orders")
    answer = api.put("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    assert answer.status == 200, answer.body
    at = utcnow() - timedelta(minutes=5)
    for kind in ("ack", "remote_server_5xx"):
        add_events("projects/shop/subscriptions/push", at=at, count=5, response_class=kind, us=1000)
    take_gauges()
    return Subscription.objects.get()


@pytest.mark.parametrize("length", ["1h", "6h", "24h", "7d", "30d", "ages"])
def test_the_charts_show_what_was_counted(client: Client, subscription: Subscription, length: str) -> None:
    """Given pushes and gauges, when their charts are opened for a period of any length, then both are drawn."""
    page = client.get(f"/admin/deliveries/segment/charts/{subscription.pk}/?range={length}").content.decode()

    assert "Push requests by response" in page
    assert "remote_server_5xx: 5\n" in page.replace("</title>", "\n")
    assert "</i>p99</span>" in page
    assert "Push window and outstanding messages" in page
    assert page.count('class="none"') == 1
    assert "The subscription has no dead letter topic." in page


def test_the_list_and_the_state_page_link_the_charts(client: Client, subscription: Subscription) -> None:
    listed = client.get("/admin/subscriptions/subscription/").content.decode()
    state = client.get(f"/admin/deliveries/delivery/state/{subscription.pk}/").content.decode()

    address = f"/admin/deliveries/segment/charts/{subscription.pk}/"
    assert address in listed
    assert address in state


def test_the_charts_are_translated_into_chinese(client: Client, subscription: Subscription) -> None:
    address = f"/admin/deliveries/segment/charts/{subscription.pk}/"
    page = client.get(address, headers={"Accept-Language": "zh-hans"}).content.decode()

    assert "按响应分类的推送请求" in page
    assert "推送窗口" in page
    assert "Push" not in page.partition('<div class="charts"')[2]


def test_charts_need_the_permission_to_see_deliveries(subscription: Subscription) -> None:
    client = Client()
    client.force_login(User.objects.create(username="ada", is_staff=True))

    assert client.get(f"/admin/deliveries/segment/charts/{subscription.pk}/").status_code == 403


def test_an_alarm_of_the_journal_is_shown(client: Client, subscription: Subscription) -> None:
    """Given an alarm, when the charts or the ledger are opened, then the page shows it until it is cleared."""
    alarm.sound(reason="No space left on device", since=1.0, lost=7)
    pages = [f"/admin/deliveries/segment/charts/{subscription.pk}/", "/admin/deliveries/segment/"]

    shown = [client.get(page).content.decode() for page in pages]
    alarm.clear()
    later = [client.get(page).content.decode() for page in pages]

    words = "has stopped: No space left on device. Deliveries go on. Events that were not written down: 7."
    assert all(words in page for page in shown)
    assert not any("has stopped" in page for page in later)


def test_segments_that_wait_for_the_bucket_are_shown(client: Client, redis_url: str) -> None:
    alarm.sound(reason="no such bucket", since=1.0, waiting=3)

    page = client.get("/admin/deliveries/segment/").content.decode()

    assert "for the bucket of the journal: 3. no such bucket. They are not counted yet, and nothing is lost." in page
    assert "has stopped" not in page


def test_the_ledger_shows_what_is_in_quarantine(client: Client, redis_url: str, settings: Any) -> None:
    note_quarantine("holiday.csv", reason="foreign: not a name of ours", job="rollup")

    page = client.get("/admin/deliveries/segment/?state__exact=quarantined").content.decode()

    assert "foreign: not a name of ours" in page
    assert Segment.objects.count() == 1


def test_a_segment_in_quarantine_is_shown_as_an_alarm_for_a_day(
    client: Client, subscription: Subscription, redis_url: str
) -> None:
    """Given a segment in quarantine, when the charts or the ledger are opened within a day, then they show it."""
    pages = [f"/admin/deliveries/segment/charts/{subscription.pk}/", "/admin/deliveries/segment/"]
    words = "Segments put into quarantine in the last day: 1. Their events are not counted."
    note_quarantine("host-1-1795237020000-1.parquet", reason="it cannot be read", job="rollup")

    shown = [client.get(page).content.decode() for page in pages]
    Segment.objects.update(at=utcnow() - timedelta(days=2))
    later = [client.get(page).content.decode() for page in pages]

    assert all(words in page for page in shown)
    assert not any("put into quarantine" in page for page in later)
