"""The list of subscriptions shows how each fares: its health, what waits, the last failure, the rate of its pushes."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.admin import subscription_list
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import PREFIX, Lane
from deliveries.models import Delivery, GaugeRound
from pushhub.common.clock import utcnow
from subscriptions.iam import grants
from subscriptions.models import Project, Subscription
from tests.metricrows import add_events, add_gauge
from tests.restapi import Api, staff_client

pytestmark = pytest.mark.django_db

LIST = "/admin/subscriptions/subscription/"
TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    return api


def round_at() -> datetime:
    """Return the time of the test's one round of gauges, which the first caller begins."""
    begun = GaugeRound.objects.first()
    return begun.at if begun else GaugeRound.objects.create(at=utcnow().replace(second=0, microsecond=0)).at


def create(
    api: Api, name: str, *, endpoint: str = "http://127.0.0.1:40009/", waiting: int = 0, backoff_ms: int = 0
) -> None:
    api.create(f"subscriptions/{name}", {"topic": TOPIC, "pushConfig": {"pushEndpoint": endpoint} if endpoint else {}})
    figures = {"undelivered": waiting, "oldest_unacked_seconds": 90 * waiting, "backoff_ms": backoff_ms}
    add_gauge(f"projects/shop/subscriptions/{name}", at=round_at(), **figures)


def shown(client: Client, query: str = "") -> dict[str, tuple[str, int]]:
    """Return the health and the number of waiting messages of each row, in their order."""
    page = client.get(f"{LIST}{query}").context["cl"]
    admin = page.model_admin
    return {
        row.subscription_id: (admin.health(row).partition('title="')[2].partition('"')[0], row.gauge_undelivered)
        for row in page.result_list
    }


def test_each_row_says_how_its_deliveries_fare(api: Api, client: Client) -> None:
    create(api, "busy", waiting=3, backoff_ms=700)
    create(api, "calm")
    create(api, "held", waiting=2)
    create(api, "pulled", endpoint="", waiting=1)
    # One that was paused before it became a pull subscription is pulled.
    Subscription.objects.filter(subscription_id__in=("held", "pulled")).update(paused=True)
    assert shown(client) == {
        "busy": ("no push worker", 3),
        "calm": ("idle", 0),
        "held": ("paused", 2),
        "pulled": ("pull", 1),
    }
    assert list(shown(client, "?health=failing")) == ["busy"]
    assert list(shown(client, "?health=waiting")) == ["busy", "held", "pulled"]
    assert list(shown(client, "?o=-3")) == ["busy", "held", "pulled", "calm"]


def test_a_row_shows_what_has_come_since_the_last_gauges(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(api, "calm")
    create(api, "other")
    api.create("subscriptions/new", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}] * 2})
    Delivery.objects.filter(subscription__subscription_id="other").delete()
    assert shown(client) == {"calm": ("no push worker", 2), "new": ("no push worker", 2), "other": ("idle", 0)}
    aged = [row.subscription_id for row in client.get(LIST).context["cl"].result_list if row.gauge_oldest_seconds]
    assert aged == ["calm", "new"]
    monkeypatch.setattr(subscription_list, "MAX_NEWER", 1)
    assert shown(client)["new"] == ("no push worker", 1)
    assert '<span class="number">1+</span>' in client.get(LIST).content.decode()


def test_a_row_that_backs_off_names_its_last_failure(api: Api, client: Client) -> None:
    create(api, "busy", waiting=1, backoff_ms=700)
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
    delivery = Delivery.objects.get()
    now_ms = utcnow().timestamp() * 1000
    redis_client = default_backlog().client
    lane = Lane(delivery.subscription_id, "local")
    redis_client.zadd(f"{PREFIX}{lane.key}:z", {str(delivery.message_id): now_ms + 60_000})
    redis_client.zadd("ph:regions", {"local": now_ms})
    Delivery.objects.update(last_result="connect_failed", last_attempt_at=utcnow())
    assert shown(client)["busy"][0] == "retrying: connect_failed"
    redis_client.delete("ph:regions")
    assert shown(client)["busy"][0] == "no push worker", "the old failure is not why"


def test_names_are_short_where_a_project_is_chosen(api: Api, client: Client) -> None:
    create(api, "busy")
    assert ">shop / busy</a>" in client.get(LIST).content.decode()
    client.post("/admin/choose-project/", {"project": "shop"})
    page = client.get(LIST).content.decode()
    assert ">busy</a>" in page
    assert ">orders</td>" in page


def test_the_curve_of_a_row_shows_the_last_minutes_and_leads_to_its_charts(api: Api, client: Client) -> None:
    create(api, "busy")
    for ago in (1, 3):
        add_events("projects/shop/subscriptions/busy", at=utcnow() - timedelta(minutes=ago), count=60 * ago)
    page = client.get(LIST).content.decode()
    assert "11,20.0 12,2.0 13,20.0 14,14.0" in page
    assert f"/charts/{Subscription.objects.get().pk}/" in page


@pytest.mark.parametrize("role", ["pubsub.viewer", "pubsub.editor", "pubsub.subscriber", "viewer"])
def test_every_page_that_a_reader_is_led_to_may_be_opened(api: Api, role: str) -> None:
    create(api, "busy")
    ada = staff_client("ada")
    grants.grant_role(Project.objects.get(), role=f"roles/{role}", member="user:ada@example.com")
    pages = [LIST, f"/admin/deliveries/delivery/state/{Subscription.objects.get().pk}/"]
    links = {link for page in pages for link in re.findall('href="(/admin/[^"?]+)', ada.get(page).content.decode())}
    assert {link: status for link in links if (status := ada.get(link).status_code) != 200} == {}
    assert any("/charts/" in link for link in links) == (role == "viewer")


def test_without_redis_the_list_says_that_the_health_is_not_known(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(api, "busy", waiting=3)
    create(api, "calm")

    def unreachable(*_: Any) -> None:
        raise redis.ConnectionError

    monkeypatch.setattr(subscription_list, "conditions_of", unreachable)
    assert shown(client) == {"busy": ("not known", 3), "calm": ("idle", 0)}


def test_a_page_of_the_list_needs_as_many_queries_with_many_rows_as_with_few(api: Api, client: Client) -> None:
    create(api, "busy", waiting=1, backoff_ms=500)
    counts = []
    for more in (0, 30):
        for number in range(more):
            create(api, f"sub-{number}", waiting=1, backoff_ms=500)
        client.get(LIST)
        with CaptureQueriesContext(connection) as queries:
            client.get(LIST)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_list_says_of_when_its_figures_are(client: Client, api: Api) -> None:
    api.create("subscriptions/new", {"topic": TOPIC})
    assert "not known: the maintenance worker has not looked" in client.get(LIST).content.decode()
    at = utcnow().replace(second=0, microsecond=0)
    GaugeRound.objects.create(at=at)
    assert f"are as of {at:%Y-%m-%d %H:%M} UTC;" in client.get(LIST).content.decode()
