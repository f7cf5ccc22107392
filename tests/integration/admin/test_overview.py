"""The first page names what fails first, is quiet when all is well, and leads an empty console to a first push."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.models import CountingLease, Delivery, GaugeMinute
from deliveries.pipeline.counting.lease import Counter, Lease
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription
from tests.restapi import Api

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
    api.made("topics/orders")
    api.made("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200


def figures(client: Client) -> dict[str, str]:
    shown: list[tuple[str, str]] = client.get("/admin/").context["figures"]
    return dict(shown)


def test_a_failing_endpoint_comes_first_with_the_reason_and_since_when(api: Api, client: Client) -> None:
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


def test_a_quiet_console_says_that_all_is_well(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge()
    assert "All is well" in client.get("/admin/").content.decode()


def test_an_empty_console_shows_three_steps_and_makes_a_demo(api: Api, client: Client) -> None:
    Project.objects.create(project_id="shop")
    page = client.get("/admin/").content.decode()
    assert page.count('<li class="card">') == 3
    answer = client.post("/admin/deliveries/delivery/demo/", {"project": "shop"}, follow=True)
    assert answer.context["title"] == "projects/shop/subscriptions/demo"
    assert Delivery.objects.count() == 1
    assert "Three steps" not in client.get("/admin/").content.decode()


def test_a_reader_sees_the_figures_of_the_own_projects_only(api: Api, client: Client) -> None:
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


def test_the_page_costs_as_many_queries_with_many_subscriptions_as_with_few(api: Api, client: Client) -> None:
    failing_subscription(api)
    gauge(undelivered=1)
    counts: list[Any] = []
    for more in (0, 30):
        for number in range(more):
            api.made(f"subscriptions/sub-{number}", {"topic": TOPIC})
            gauge(f"projects/shop/subscriptions/sub-{number}", undelivered=1)
        client.get("/admin/")
        with CaptureQueriesContext(connection) as queries:
            client.get("/admin/")
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_parts_of_the_deployment_say_who_counts_and_how_far(client: Client, settings: Any) -> None:
    def pipeline() -> tuple[str, str]:
        rows: list[tuple[str, str, str]] = client.get("/admin/").context["health"]
        return {name: (level, state) for name, level, state in rows}["Metrics pipeline"]

    settings.JOURNAL = "/nowhere"
    assert pipeline() == ("good", "nothing has been counted yet")
    opened = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
    now = opened.replace(hour=14)
    lease = Lease(Counter.SPARK, clock=lambda: now)
    lease.renew([f"host-1-{int(opened.timestamp() * 1000)}-0.parquet"])
    state = "counted up to 2026-11-21 09:30, 1 segment waiting, by Spark"
    assert pipeline() == ("warn", f"{state}, which has stopped")
    CountingLease.objects.update(until=utcnow() + timedelta(minutes=1))
    assert pipeline() == ("good", state)
    settings.JOURNAL = ""
    assert pipeline() == ("warn", "does not run")
