"""A subscription's charts, zero and unknown values in them, and the warnings about the journal on these pages."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.models import CountingLease, GaugeRound, Segment
from deliveries.telemetry.counting.ledger import note_quarantine
from deliveries.telemetry.journal import alarm
from deliveries.telemetry.series import curves
from deliveries.telemetry.series.coverage import counting, coverage
from deliveries.telemetry.series.gauges import take_gauges
from pushhub.common.clock import utcnow
from subscriptions.iam.grants import grant_role
from subscriptions.models import Subscription, Topic
from tests.metricrows import add_events, add_gauge
from tests.restapi import Api, staff_client

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"
MINUTE = timedelta(minutes=1)
NOW = utcnow().replace(second=0, microsecond=0)


@pytest.fixture
def subscription(redis_url: str) -> Subscription:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    return Subscription.objects.get()


def charts(client: Client, subscription: Subscription, query: str = "") -> str:
    return client.get(f"/admin/deliveries/segment/charts/{subscription.pk}/?{query}").content.decode()


def pushes(*, minutes_ago: int, count: int, event: str = "push") -> None:
    at, us = NOW - minutes_ago * MINUTE, 1000 if event == "push" else 0
    add_events(PUSH, event, at=at, count=count, response_class="ack" if us else "", host="127.0.0.1", us=us)


def counted(*, minutes_ago: float, counter: str = "embedded", runs: bool = True, waiting: int = 0) -> None:
    CountingLease.objects.create(
        counter=counter,
        until=utcnow() + timedelta(minutes=5 if runs else -5),
        counted_to=NOW - minutes_ago * MINUTE,
        waiting=waiting,
    )


def span(minutes: int) -> curves.Span:
    return curves.Span("shop", "push", NOW - minutes * MINUTE, NOW, MINUTE, now=NOW)


def test_a_counted_period_without_pushes_is_zero_and_an_uncounted_one_is_a_gap(redis_url: str) -> None:
    counted(minutes_ago=2)
    pushes(minutes_ago=4, count=7)
    pushes(minutes_ago=1, count=3)
    period = span(5)
    counts = curves.counts(period, coverage(period, counting().counted_to).counted)
    assert counts.pushes == {"ack": [0.0, 7.0, 0.0, None, 3.0]}
    assert [value is None for value in counts.latencies_ms[0.5]] == [True, False, True, True, False]
    assert counts.dead_letters == [0.0, 0.0, 0.0, None, 0.0]


def test_a_minute_without_a_row_is_zero_if_gauges_were_taken_and_a_gap_otherwise(redis_url: str) -> None:
    figures = {"undelivered": 4, "oldest_unacked_seconds": 9, "outstanding": 1, "push_window": 3, "backoff_ms": 1500}
    GaugeRound.objects.create(at=NOW - 3 * MINUTE)
    add_gauge(PUSH, at=NOW - 2 * MINUTE, **figures)
    period = span(3)
    gauges = curves.gauges(period, coverage(period, None).taken)
    assert gauges.undelivered == [0.0, 4.0, None]
    assert gauges.push_window == [None, 3.0, None]
    assert gauges.backoff_seconds == [0.0, 1.5, None]


def test_a_round_of_gauges_is_noted_once_a_minute(subscription: Subscription) -> None:
    take_gauges(clock=lambda: NOW)
    take_gauges(clock=lambda: NOW + timedelta(seconds=30))
    assert GaugeRound.objects.get().at == NOW


def test_every_empty_chart_gives_its_reason(client: Client, subscription: Subscription, settings: Any) -> None:
    settings.JOURNAL = "/journal"
    page = charts(client, subscription)
    assert page.count('class="none"') == 7
    assert page.count("Nothing has been counted yet. The maintenance worker") == 2
    assert page.count("The subscription has no dead letter topic.") == 1
    assert page.count("Nothing was recorded in this time: no maintenance worker ran.") == 4

    counted(minutes_ago=0)
    GaugeRound.objects.create(at=NOW)
    page = charts(client, subscription)
    assert page.count("No message was pushed in this time.") == 2
    assert page.count('class="none"') == 3, "the gauges are zero"

    Subscription.objects.update(dead_letter_topic=Topic.objects.get())
    assert charts(client, subscription).count("No message was dead-lettered in this time.") == 1

    CountingLease.objects.update(counted_to=NOW - timedelta(hours=2), waiting=3)
    assert charts(client, subscription).count("This time is not counted yet. Counted up to") == 3

    old = f"start={NOW - timedelta(days=20):%Y-%m-%dT%H:%M:%SZ}&end={NOW - timedelta(days=19):%Y-%m-%dT%H:%M:%SZ}"
    assert charts(client, subscription, old).count("No message was pushed") == 2

    Subscription.objects.update(push_endpoint="")
    assert charts(client, subscription, old).count("are pulled, not pushed.") == 2

    settings.JOURNAL = ""
    assert charts(client, subscription).count("The journal is switched off") == 3


def test_the_page_says_which_counter_runs_and_how_far_it_is(
    client: Client, subscription: Subscription, settings: Any
) -> None:
    def counting_state() -> tuple[str, str]:
        context = client.get(f"/admin/deliveries/segment/charts/{subscription.pk}/").context
        return context["counting_level"], context["counting"]

    time = f"{NOW:%Y-%m-%d %H:%M:%S} UTC"
    assert counting_state() == ("warn", "The journal is switched off (PUSHHUB_JOURNAL), so nothing is counted.")
    settings.JOURNAL = "/nowhere"
    assert counting_state() == ("warn", "Nothing has been counted yet: no maintenance worker ran.")
    counted(minutes_ago=0, waiting=2)
    assert counting_state() == ("good", f"Counted up to {time} by the embedded counter. Segments that wait: 2.")
    CountingLease.objects.update(counter="spark", waiting=0)
    assert counting_state() == ("good", f"Counted up to {time} by Spark.")
    CountingLease.objects.update(until=utcnow() - MINUTE)
    assert counting_state()[0] == "warn"
    assert counting_state()[1].startswith(f"Counting has stopped: counted up to {time}.")


def test_a_range_is_compared_with_the_week_before(client: Client, subscription: Subscription) -> None:
    counted(minutes_ago=0)
    pushes(minutes_ago=5, count=11)
    pushes(minutes_ago=5 + 7 * 24 * 60, count=23)
    page = charts(client, subscription, "range=1h&compare=week").replace("</title>", "\n")
    assert "ack: 11\nAll, a week before: 23\n" in page
    assert "p50, a week before" in page
    assert "a week before" not in charts(client, subscription, "range=1h")


def test_the_overview_has_percentiles_and_responses_of_the_last_minutes_that_are_counted(
    client: Client, subscription: Subscription
) -> None:
    def figures() -> dict[str, str]:
        shown: dict[str, str] = client.get(f"/admin/deliveries/delivery/state/{subscription.pk}/live/").json()[
            "figures"
        ]
        return {name: shown[name] for name in ("p50", "p99", "responses")}

    assert figures() == {"p50": "-", "p99": "-", "responses": "-"}
    counted(minutes_ago=30)
    pushes(minutes_ago=5, count=50)
    pushes(minutes_ago=31, count=3)
    assert figures() == {"p50": "1 ms", "p99": "1 ms", "responses": "ack 100.0 %"}
    page = client.get(f"/admin/deliveries/delivery/state/{subscription.pk}/").content.decode()
    assert f"Counted up to {NOW - 30 * MINUTE:%Y-%m-%d %H:%M:%S} UTC by the embedded counter." in page


def test_the_page_needs_as_many_queries_for_a_month_as_for_an_hour(client: Client, subscription: Subscription) -> None:
    counted(minutes_ago=0)
    query_counts = []
    for number, query in enumerate(("range=1h", "range=1h", "range=30d")):
        pushes(minutes_ago=number, count=1)
        with CaptureQueriesContext(connection) as queries:
            charts(client, subscription, query)
        query_counts.append(len(queries))
    assert query_counts[1] == query_counts[2]


def test_hosts_and_segments_in_trouble_are_shown_to_operators_alone(client: Client, subscription: Subscription) -> None:
    """They tell of all tenants."""
    Segment.objects.create(name="a", state=Segment.State.QUARANTINED, at=utcnow(), rows=0)
    shown = "Segments put into quarantine"
    tenant = staff_client("ada")
    grant_role(subscription.project, role="roles/monitoring.viewer", member="user:ada@example.com")
    grant_role(subscription.project, role="roles/pubsub.viewer", member="user:ada@example.com")

    assert shown in charts(client, subscription)
    page = tenant.get(f"/admin/deliveries/segment/charts/{subscription.pk}/")
    assert page.status_code == 200
    assert shown not in page.content.decode()


@pytest.fixture
def pushed(subscription: Subscription) -> Subscription:
    """The subscription with a minute of pushes, good and bad, and with gauges."""
    for kind in ("ack", "remote_server_5xx"):
        add_events(PUSH, at=NOW - 5 * MINUTE, count=5, response_class=kind, us=1000)
    take_gauges()
    return subscription


@pytest.mark.parametrize("length", ["1h", "6h", "24h", "7d", "30d", "ages"])
def test_the_charts_show_what_was_counted(client: Client, pushed: Subscription, length: str) -> None:
    """Given pushes and gauges, when their charts are opened for a period of any length, then both are drawn."""
    page = charts(client, pushed, f"range={length}")

    assert "Push requests by response" in page
    assert "remote_server_5xx: 5\n" in page.replace("</title>", "\n")
    assert "</i>p99</span>" in page
    assert "Push window and outstanding messages" in page
    assert page.count('class="none"') == 1
    assert "The subscription has no dead letter topic." in page


def test_the_list_and_the_state_page_link_the_charts(client: Client, pushed: Subscription) -> None:
    listed = client.get("/admin/subscriptions/subscription/").content.decode()
    state = client.get(f"/admin/deliveries/delivery/state/{pushed.pk}/").content.decode()

    address = f"/admin/deliveries/segment/charts/{pushed.pk}/"
    assert address in listed
    assert address in state


def test_the_charts_are_translated_into_chinese(client: Client, pushed: Subscription) -> None:
    address = f"/admin/deliveries/segment/charts/{pushed.pk}/"
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
