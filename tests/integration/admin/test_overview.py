"""The first page shows how things stand and all that fails; if the console is empty, it leads to a first push."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
import requests
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.admin import demoreceiver
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.inspection import failing as failing_endpoints
from deliveries.inspection import overview as overviews
from deliveries.models import CountingLease, Delivery, GaugeRound
from deliveries.store import trial
from deliveries.telemetry.counting.lease import Counter, Lease
from deliveries.telemetry.series.coverage import counting
from deliveries.telemetry.series.gauges import take_gauges
from pushhub.common.clock import minute_text, utcnow
from pushhub.common.outages import Cause
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription, Topic
from tests.demoreceivers import stop_receiver
from tests.lanes import lane_change
from tests.metricrows import add_events, add_gauge
from tests.ports import wait_for
from tests.restapi import Api, staff_client
from tests.workers import Worker

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"


def minute(*, ago: int = 0) -> datetime:
    return utcnow().replace(second=0, microsecond=0) - timedelta(minutes=ago)


def gauge(
    resource: str = PUSH, *, minutes_ago: int = 0, at: datetime | None = None, backoff_ms: int = 0, undelivered: int = 0
) -> None:
    figures = {"oldest_unacked_seconds": 90, "backoff_ms": backoff_ms, "undelivered": undelivered}
    add_gauge(resource, at=at or minute(ago=minutes_ago), **figures)


def failing_subscription(api: Api) -> None:
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200


def figures(client: Client) -> dict[str, str]:
    shown: list[tuple[str, str, str]] = client.get("/admin/").context["figures"]
    return {name: text for name, text, _ in shown}


def failing(client: Client) -> list[dict[str, Any]]:
    return [row for _, rows in client.get("/admin/").context["failing"] for row in rows]


def pushes(at: datetime, response_class: str, *, count: int = 10, resource: str = PUSH) -> None:
    add_events(resource, at=at, count=count, response_class=response_class)


def test_a_failing_endpoint_is_shown_below_the_figures_with_its_reason_and_its_host(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(backoff_ms=500, undelivered=1)
    page = client.get("/admin/")
    [(host, [row])] = page.context["failing"]
    assert (host, row["name"], row["undelivered"]) == ("127.0.0.1:40009", "shop / push", 1)
    assert row["why"] == "no push worker of region local"
    assert page.context["failing_count"] == 1
    text = page.content.decode()
    assert text.index("Undelivered messages") < text.index("127.0.0.1:40009")
    assert figures(client)["Undelivered messages"] == "1"
    assert f"Undelivered messages and their age are as of {minute_text(minute())}." in text


def test_an_endpoint_in_backoff_fails_between_its_pauses_too(api: Api, client: Client) -> None:
    # Given an endpoint whose pause is over, while the next retry is not due
    failing_subscription(api)
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200
    default_backlog().beat("push@test", regions=["local"])
    lane_change(default_backlog(), Lane(Subscription.objects.get().pk, "local"), backoff_level=5)
    take_gauges()
    [(_host, [row])] = client.get("/admin/").context["failing"]
    assert row["name"] == "shop / push"


def test_where_nothing_waits_there_is_no_oldest_message(api: Api, client: Client) -> None:
    GaugeRound.objects.create(at=minute())
    assert (figures(client)["Undelivered messages"], figures(client)["Oldest unacked message"]) == ("0", "-")


def test_the_last_result_is_the_counted_class_where_no_message_that_failed_waits(api: Api) -> None:
    failing_subscription(api)
    gauge(backoff_ms=500, undelivered=1)
    for ago, response_class in ((3, "remote_server_4xx"), (2, "remote_server_5xx"), (1, "ack")):
        pushes(utcnow() - timedelta(minutes=ago), response_class)
    [[failing], _, _] = failing_endpoints.failing_subscriptions(Subscription.objects.all(), counting())
    assert failing.last_result == "remote_server_5xx"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """Let it be 12:30 for the page."""
    noon = utcnow().replace(hour=12, minute=30, second=0, microsecond=0)
    monkeypatch.setattr(failing_endpoints.failing_subscriptions, "__kwdefaults__", {"clock": lambda: noon})
    monkeypatch.setattr(failing_endpoints, "last_round", lambda _now: GaugeRound.objects.latest("at").at)
    return noon


@pytest.mark.parametrize(
    ("acks", "nacks", "since"),
    [
        # Minutes before 12:30 in which pushes were acked, and in which they were nacked.
        ([200, 100, 10], [8, 5, 1], 8),
        ([200, 100], [50, 8, 1], 50),
        # A stray ack in a minute of nacks ends no outage; a stray nack begins none.
        ([300, 100], [*[50] * 20, *[20] * 20, 1], 50),
        ([], [7, 3], 7),
        ([], [24 * 60 - 10, 300, 7], None),
        ([], [], None),
    ],
)
def test_an_endpoint_fails_since_its_pushes_are_not_acknowledged_any_more(
    api: Api, client: Client, noon: datetime, acks: list[int], nacks: list[int], since: int | None
) -> None:
    failing_subscription(api)
    gauge(backoff_ms=500, undelivered=1)
    for ago in acks:
        pushes(noon - timedelta(minutes=ago), "ack")
    for ago in nacks:
        pushes(noon - timedelta(minutes=ago), "remote_server_5xx")
    [row] = failing(client)
    assert row["since"] == (None if since is None else noon - timedelta(minutes=since))


def test_all_failing_endpoints_are_shown_in_as_many_queries_as_one(
    api: Api, client: Client, noon: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_subscription(api)
    at = minute()  # one for all: only the last gauges count
    gauge(at=at, backoff_ms=500, undelivered=1)
    pushes(noon - timedelta(minutes=3), "remote_server_5xx")
    counts: list[Any] = []
    for more in (0, 30):
        for number in range(more):
            name = f"projects/shop/subscriptions/sub-{number}"
            endpoint = f"http://127.0.0.1:{40010 + number % 2}/"
            api.create(f"subscriptions/sub-{number}", {"topic": TOPIC, "pushConfig": {"pushEndpoint": endpoint}})
            gauge(name, at=at, backoff_ms=500, undelivered=1)
            pushes(noon - timedelta(minutes=3), "remote_server_5xx", resource=name)
        client.get("/admin/")
        with CaptureQueriesContext(connection) as queries:
            client.get("/admin/")
        # The probe whether the database can be written is made once a second, so it may fall into either.
        counts.append(sum(query["sql"].startswith("SELECT") for query in queries))
    assert len(failing(client)) == 31
    assert counts[0] == counts[1]
    assert {host: len(rows) for host, rows in client.get("/admin/").context["failing"]} == {
        "127.0.0.1:40009": 1,
        "127.0.0.1:40010": 15,
        "127.0.0.1:40011": 15,
    }
    monkeypatch.setattr(failing_endpoints, "MAX_SHOWN", 20)
    assert client.get("/admin/").context["failing_count"] == 31
    assert "And 11 more." in client.get("/admin/").content.decode()


def test_the_part_that_changes_is_served_alone_and_shows_no_more_than_the_page(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(backoff_ms=500, undelivered=1)
    part = client.get("/admin/deliveries/delivery/overview/")
    assert "127.0.0.1:40009" in part.content.decode()
    assert "<html" not in part.content.decode()
    assert Client().get("/admin/deliveries/delivery/overview/").status_code == 302


def test_all_is_not_said_to_be_well_where_it_is_not_known(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_subscription(api)
    gauge(minutes_ago=5)
    text = client.get("/admin/").content.decode()
    assert "the maintenance worker has not looked lately" in text
    assert "No endpoint is known" not in text
    gauge(backoff_ms=500)

    def unreachable(*_: Any) -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(failing_endpoints, "lane_views", unreachable)
    text = client.get("/admin/").content.decode()
    assert "It is not known which endpoints fail: Redis cannot be reached." in text
    assert "No endpoint is known" not in text


def test_rates_are_those_of_the_last_five_minutes_with_a_curve_of_fifteen(api: Api, client: Client) -> None:
    failing_subscription(api)
    minute = utcnow().replace(second=0, microsecond=0)
    for ago in (1, 2, 12):
        pushes(minute - timedelta(minutes=ago), "ack", count=600)
    assert figures(client)["Pushed"] == "4.0 / s"
    assert figures(client)["Published"] == "-"
    curves = [curve for _, _, curve in client.get("/admin/").context["figures"]]
    assert [curve.count(",") for curve in curves] == [0, 0, 0, 15, 0]


def test_a_quiet_console_says_when_it_found_no_endpoint_in_backoff(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge()
    taken = minute_text(GaugeRound.objects.latest("at").at)
    assert (
        f"No endpoint is known to be in backoff. PushHub looked at {taken}." in client.get("/admin/").content.decode()
    )


def test_a_reader_without_a_role_is_told_so_and_not_that_nothing_fails(api: Api) -> None:
    failing_subscription(api)
    gauge(backoff_ms=500, undelivered=1)
    ada = Client()
    ada.force_login(User.objects.create(username="ada", email="ada@example.com", is_staff=True))
    page = ada.get("/admin/").content.decode()
    assert "There is no project that you may see." in page
    assert "No endpoint that you may see here is known to be in backoff" in page
    assert "No endpoint is known" not in page and "Three steps" not in page
    grants.grant_role(Project.objects.get(), role="roles/pubsub.viewer", member="user:ada@example.com")
    page = ada.get("/admin/").content.decode()
    assert "127.0.0.1:40009" in page and "There is no project" not in page


@pytest.fixture
def stops_demo_receiver() -> Iterator[None]:
    yield
    stop_receiver()


@pytest.mark.usefixtures("stops_demo_receiver")
def test_in_development_the_demo_starts_before_there_is_a_project(api: Api, client: Client, settings: Any) -> None:
    demo = "/admin/deliveries/delivery/demo/"
    settings.DEVELOPMENT = False
    assert demo not in client.get("/admin/").content.decode()
    settings.DEVELOPMENT = True
    assert demo in client.get("/admin/").content.decode()
    client.post(demo, {"project": "demo"})
    assert Topic.objects.get().name == "projects/demo/topics/demo"


def test_each_language_is_offered_by_its_own_name(api: Api, client: Client) -> None:
    assert ">简体中文</button>" in client.get("/admin/", headers={"accept-language": "en"}).content.decode()
    assert ">English</button>" in client.get("/admin/", headers={"accept-language": "zh-hans"}).content.decode()


@pytest.mark.usefixtures("stops_demo_receiver")
@pytest.mark.django_db(transaction=True)
def test_an_empty_console_shows_three_steps_and_a_demo_that_delivers(
    api: Api, client: Client, redis_url: str, settings: Any
) -> None:
    Project.objects.create(project_id="shop")
    page = client.get("/admin/").content.decode()
    assert page.count('<li class="card">') == 3
    assert f"export PUSHHUB_URL={settings.PUBLIC_URL} PUSHHUB_PROJECT=shop\npushhub topics create hello\n" in page
    demo = "/admin/deliveries/delivery/demo/"
    answer = client.post(demo, {"project": "shop"}, follow=True)
    assert "Nothing yet." in answer.content.decode()
    assert "Three steps" not in client.get("/admin/").content.decode()
    with Worker(redis_url):
        wait_for(lambda: client.get(f"{demo}?project=shop").context["rows"])
        [arrival] = client.get(f"{demo}?project=shop").context["rows"]
        assert (arrival["data"], arrival["message_id"].isdecimal()) == ("Hello from PushHub", True)
        stop_receiver()
        client.post(demo, {"project": "shop"})
        wait_for(lambda: not Delivery.objects.exists())
    assert len(client.get(f"{demo}?project=shop").context["rows"]) == 2, "a new receiver took over"


@pytest.mark.usefixtures("stops_demo_receiver")
def test_a_demo_that_the_address_guard_refuses_creates_nothing(api: Api, client: Client, settings: Any) -> None:
    Project.objects.create(project_id="shop")
    settings.ALLOW_PRIVATE, settings.ALLOWED_NETWORKS = False, []
    answer = client.post("/admin/deliveries/delivery/demo/", {"project": "shop"}, follow=True)
    assert "127.0.0.1" in str(next(iter(answer.context["messages"])))
    assert not Topic.objects.exists()


def test_the_demos_receiver_accepts_only_short_pushes_at_its_own_path() -> None:
    pushes: list[Any] = []
    receiver = demoreceiver.DemoReceiver(pushes.append)
    push = {"message": {"messageId": "7", "data": "aGVsbG8="}, "subscription": PUSH}
    try:
        statuses = [
            requests.post(receiver.url, json=push, timeout=30).status_code,
            requests.post(receiver.url.rpartition("/")[0], json=push, timeout=30).status_code,
            requests.post(receiver.url, data=b"hello", timeout=30).status_code,
            requests.post(receiver.url, data=b"x" * (demoreceiver.BODY_BYTES + 1), timeout=30).status_code,
            requests.get(receiver.url, timeout=30).status_code,
        ]
    finally:
        receiver.stop()
    assert statuses == [204, 404, 400, 413, 501]
    assert [pushed.data for pushed in pushes] == [b"hello"]


def test_superusers_are_redirected_to_flower_on_the_host_of_the_console(
    api: Api, client: Client, settings: Any
) -> None:
    settings.FLOWER_ADDRESS = ("0.0.0.0", 5599)
    assert "/admin/deliveries/delivery/flower/" in client.get("/admin/").content.decode()
    answer = client.get("/admin/deliveries/delivery/flower/")
    assert answer.headers["Location"] == "http://testserver:5599/tasks"


def test_a_reader_sees_only_the_figures_of_its_own_projects(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(undelivered=7, backoff_ms=500)
    Project.objects.create(project_id="other")
    ada = staff_client("ada")
    grants.grant_role(Project.objects.get(project_id="other"), role="roles/owner", member="user:ada@example.com")
    page = ada.get("/admin/")
    assert page.context["failing"] == [] and page.context["health"] == []
    assert page.context["figures"][0][:2] == ("Undelivered messages", "0")
    assert ada.post("/admin/deliveries/delivery/demo/", {"project": "shop"}, follow=True).context["failing"] == []
    assert Subscription.objects.count() == 1


def test_the_health_of_the_push_workers_shows_whether_they_get_their_jobs_done(client: Client) -> None:
    def workers() -> tuple[str, str]:
        rows: list[tuple[str, str, str]] = client.get("/admin/").context["health"]
        return {name: (level, state) for name, level, state in rows}["Push workers"]

    # One that died long ago does not count.
    default_backlog().client.zadd("ph:workers", {"dead": 1})
    assert workers() == ("bad", "none lives")
    default_backlog().beat("push@test", oldest_job_seconds=60)
    level, state = workers()
    assert level == "good"
    assert state.startswith("1, last sign of life")
    default_backlog().beat("push@test", oldest_job_seconds=61)
    assert workers() == ("warn", "1, of which one has had a job for 61 s")


def test_the_health_of_the_stores_shows_whether_they_take_writes(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts() -> dict[str, tuple[str, str]]:
        rows: list[tuple[str, str, str]] = client.get("/admin/").context["health"]
        return {name: (level, state) for name, level, state in rows}

    assert parts()["Database"] == parts()["Redis"] == ("good", "answers")
    # Given a database and a Redis that answer questions, and take nothing
    monkeypatch.setattr(trial, "_refusal", (Cause.DATABASE_READ_ONLY, time.monotonic()))

    def full(**_: Any) -> None:
        raise redis.OutOfMemoryError

    monkeypatch.setattr(overviews, "redis_writes", full)
    assert parts()["Database"] == ("bad", "the database is read-only")
    assert parts()["Redis"] == ("bad", "Redis has no memory left")
    assert parts()["Push workers"] == ("", "not known")


def test_the_health_of_the_pipeline_shows_which_counter_runs_and_how_far_it_is(client: Client, settings: Any) -> None:
    def pipeline() -> tuple[str, str]:
        rows: list[tuple[str, str, str]] = client.get("/admin/").context["health"]
        return {name: (level, state) for name, level, state in rows}["Metrics pipeline"]

    settings.JOURNAL = "/nowhere"
    assert pipeline() == ("warn", "Nothing has been counted yet: no maintenance worker ran.")
    opened = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    now = opened.replace(hour=14)
    lease = Lease(Counter.SPARK, clock=lambda: now)
    lease.renew([f"host-1-{int(opened.timestamp() * 1000)}-0.parquet"])
    time = "2026-11-21 09:30:00 UTC"
    assert pipeline() == ("warn", f"Counting has stopped: counted up to {time}. No counter gives a sign of life.")
    CountingLease.objects.update(until=utcnow() + timedelta(minutes=1))
    assert pipeline() == ("good", f"Counted up to {time} by Spark. Segments that wait: 1.")
    settings.JOURNAL = ""
    assert pipeline() == ("warn", "The journal is switched off (PUSHHUB_JOURNAL), so nothing is counted.")
