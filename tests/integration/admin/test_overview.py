"""The first page shows failures first, is quiet when all is well, and leads to a first push if the console is empty."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.admin import demoreceiver
from deliveries.backlog.default import default_backlog
from deliveries.models import CountingLease, Delivery, GaugeMinute
from deliveries.pipeline.counting.lease import Counter, Lease
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription, Topic
from tests.ports import wait_for
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"


@pytest.fixture
def api(redis_url: str) -> Api:
    return Api()


@pytest.fixture
def client(redis_url: str) -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", "root@example.com"))
    return client


def gauge(resource: str = PUSH, *, minutes_ago: int = 0, backoff_ms: int = 0, undelivered: int = 0) -> None:
    GaugeMinute.objects.create(
        project=resource.split("/")[1],
        resource=resource,
        at=utcnow().replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago),
        undelivered=undelivered,
        oldest_unacked_seconds=90,
        outstanding=0,
        push_window=3,
        backoff_ms=backoff_ms,
    )


def failing_subscription(api: Api) -> None:
    api.create("topics/orders")
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200


def figures(client: Client) -> dict[str, str]:
    shown: list[tuple[str, str]] = client.get("/admin/").context["figures"]
    return dict(shown)


def test_a_failing_endpoint_comes_first_with_the_reason_and_time_of_its_failure(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(minutes_ago=2)
    gauge(backoff_ms=500, undelivered=1)
    page = client.get("/admin/")
    [failing] = page.context["failing"]
    assert failing["name"] == PUSH
    assert failing["sentence"].startswith("No push worker of region local has run yet")
    assert failing["since"] == GaugeMinute.objects.earliest("at").at
    assert page.content.decode().index(PUSH) < page.content.decode().index("Undelivered messages")
    assert figures(client)["Undelivered messages"] == "1"


@pytest.mark.parametrize(("minutes", "is_known"), [(7, True), (24 * 60 - 1, False)])
def test_an_endpoint_that_never_worked_fails_since_its_first_minute_of_the_last_day(
    api: Api, client: Client, minutes: int, is_known: bool
) -> None:
    failing_subscription(api)
    gauge(minutes_ago=minutes, backoff_ms=500, undelivered=1)
    gauge(backoff_ms=500, undelivered=1)
    [failing] = client.get("/admin/").context["failing"]
    assert failing["since"] == (GaugeMinute.objects.earliest("at").at if is_known else None)


def test_a_quiet_console_says_that_all_is_well(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge()
    assert "All is well" in client.get("/admin/").content.decode()


@pytest.fixture
def stops_demo_receiver() -> Iterator[None]:
    yield
    demoreceiver.receiver_stop()


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
def test_an_empty_console_shows_three_steps_and_a_demo_that_delivers(api: Api, client: Client, redis_url: str) -> None:
    Project.objects.create(project_id="shop")
    page = client.get("/admin/").content.decode()
    assert page.count('<li class="card">') == 3
    demo = "/admin/deliveries/delivery/demo/"
    answer = client.post(demo, {"project": "shop"}, follow=True)
    assert "Nothing yet." in answer.content.decode()
    assert "Three steps" not in client.get("/admin/").content.decode()
    with Worker(redis_url):
        wait_for(lambda: client.get(f"{demo}?project=shop").context["rows"])
        [arrival] = client.get(f"{demo}?project=shop").context["rows"]
        assert (arrival["data"], arrival["message_id"].isdecimal()) == ("Hello from PushHub", True)
        demoreceiver.receiver_stop()
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
    user = User.objects.create(username="ada", email="ada@example.com", is_staff=True)
    user.user_permissions.set(Permission.objects.all())
    ada = Client()
    ada.force_login(user)
    grants.role_grant(Project.objects.get(project_id="other"), role="roles/owner", member="user:ada@example.com")
    page = ada.get("/admin/")
    assert page.context["failing"] == [] and page.context["health"] == []
    assert dict(page.context["figures"])["Undelivered messages"] == "-"
    assert ada.post("/admin/deliveries/delivery/demo/", {"project": "shop"}, follow=True).context["failing"] == []
    assert Subscription.objects.count() == 1


def test_the_page_needs_as_many_queries_with_many_subscriptions_as_with_few(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(undelivered=1)
    counts: list[Any] = []
    for more in (0, 30):
        for number in range(more):
            api.create(f"subscriptions/sub-{number}", {"topic": TOPIC})
            gauge(f"projects/shop/subscriptions/sub-{number}", undelivered=1)
        client.get("/admin/")
        with CaptureQueriesContext(connection) as queries:
            client.get("/admin/")
        counts.append(len(queries))
    assert counts[0] == counts[1]


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
    assert pipeline() == ("warn", f"Counting has stopped: counted up to {time}. No maintenance worker runs.")
    CountingLease.objects.update(until=utcnow() + timedelta(minutes=1))
    assert pipeline() == ("good", f"Counted up to {time} by Spark. Segments that wait: 1.")
    settings.JOURNAL = ""
    assert pipeline() == ("warn", "does not run")
