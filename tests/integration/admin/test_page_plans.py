"""The console's pages look metrics up in an index, however the rows of busy and of young subscriptions are spread."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.models import CountingLease, GaugeMinute, GaugeRound, MetricMinute
from pushhub.common.clock import utcnow
from subscriptions.models import Subscription
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url")]

TABLES = (MetricMinute._meta.db_table, GaugeMinute._meta.db_table)
#: A subscription has had pushes in each of these minutes, the others in the first and in each of the last ten.
BUSY_MINUTES, OTHERS = 1500, 400
OVERVIEW = "deliveries/delivery/overview/"
#: Pages that read minutes, tried one after the other, as the rows take longest to store.
PAGES = (
    "subscriptions/subscription/",
    "deliveries/delivery/state/{}/live/",
    "deliveries/segment/charts/{}/?range=1h",
)


def store_minutes(minutes: list[datetime], names: list[str]) -> None:
    """Store a push and gauges of each of these subscriptions in each minute."""
    resources = [f"projects/shop/subscriptions/{name}" for name in names]
    own = [{"project": "shop", "resource": resource, "at": at} for at in minutes for resource in resources]
    sums = {"bytes": 0, "latency_us_sum": 0, "latency_us_max": 0, "buckets": {str(bucket): 1 for bucket in range(30)}}
    kind = {"event": "push", "response_class": "remote_server_5xx", "response_code": 503, "count": 1}
    MetricMinute.objects.bulk_create(MetricMinute(**each, **kind, **sums) for each in own)
    figures = {"undelivered": 1, "oldest_unacked_seconds": 90, "outstanding": 0, "push_window": 1, "backoff_ms": 0}
    GaugeMinute.objects.bulk_create(GaugeMinute(**each, **figures) for each in own)


def analyze() -> None:
    with connection.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"ANALYZE {table}")


@pytest.fixture(params=["known", "unknown"])
def busy(api: Api, request: pytest.FixtureRequest) -> Subscription:
    """Return a busy subscription, whose newest minutes the database's statistics know or don't know yet."""
    api.create("topics/orders")
    push = {"pushEndpoint": "http://127.0.0.1:40009/"}
    api.create("subscriptions/busy", {"topic": "projects/shop/topics/orders", "pushConfig": push})
    now = utcnow().replace(second=0, microsecond=0)
    minutes = [now - timedelta(minutes=ago) for ago in range(BUSY_MINUTES, -1, -1)]
    others = [f"other-{number}" for number in range(OTHERS)]
    store_minutes(minutes[:-15], ["busy"])
    store_minutes(minutes[:1], others)
    analyze()
    store_minutes(minutes[-10:], ["busy", *others])
    if request.param == "known":
        analyze()
    GaugeRound.objects.create(at=now)
    GaugeMinute.objects.filter(at=now, resource__endswith="/busy").update(backoff_ms=500)
    return Subscription.objects.get()


def queries_of(client: Client, page: str) -> list[str]:
    """Return the queries of a page that read minutes."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(f"/admin/{page}").status_code == 200
    return [query["sql"] for query in queries if any(table in query["sql"] for table in TABLES)]


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {sql}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def test_a_page_looks_the_minutes_of_a_busy_subscription_up(busy: Subscription, client: Client) -> None:
    """It reads neither the whole table nor all rows of a minute."""
    wide = [f"{word} {table}" for table in TABLES for word in ("Seq Scan on", "SCAN")]
    for page in PAGES:
        plans = [plan(sql) for sql in queries_of(client, page.format(busy.pk))]
        assert plans, page
        assert [each for each in plans if any(word in each for word in (*wide, "minute_at"))] == [], page


@pytest.mark.parametrize("busy", ["known"], indirect=True)
def test_what_is_counted_is_added_up_once_for_each_state_of_the_counter(busy: Subscription, client: Client) -> None:
    def asked() -> bool:
        return any(TABLES[0] in sql for sql in queries_of(client, OVERVIEW))

    def pushed() -> str:
        return dict(figure[:2] for figure in client.get(f"/admin/{OVERVIEW}").context["figures"])["Pushed"]

    now = utcnow()
    lease = {"until": now + timedelta(hours=1), "counted_to": now, "waiting": 0}
    CountingLease.objects.create(pk=1, counter="embedded", **lease)
    assert asked()
    wait_for(lambda: not asked(), what="a page before the minute ends")
    before = pushed()
    MetricMinute.objects.filter(resource="projects/shop/subscriptions/busy").update(count=100_000)
    CountingLease.objects.update(counted_to=now + timedelta(seconds=1))
    assert pushed() != before
