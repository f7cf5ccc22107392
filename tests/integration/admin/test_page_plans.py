"""The console's pages look metrics up in an index, however the rows of busy and of young subscriptions are spread."""

from __future__ import annotations

from datetime import timedelta

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

TABLE = MetricMinute._meta.db_table
#: A subscription has had pushes in each of these minutes, the others in each of the last ten.
BUSY_MINUTES, OTHERS = 3000, 1000
OVERVIEW = "deliveries/delivery/overview/"


@pytest.fixture
def busy(api: Api) -> Subscription:
    api.create("topics/orders")
    push = {"pushEndpoint": "http://127.0.0.1:40009/"}
    api.create("subscriptions/busy", {"topic": "projects/shop/topics/orders", "pushConfig": push})
    now = utcnow().replace(second=0, microsecond=0)
    times = [("busy", ago) for ago in range(BUSY_MINUTES)]
    times += [(f"young-{number}", ago) for number in range(OTHERS) for ago in range(1, 11)]
    sums = {"bytes": 0, "latency_us_sum": 0, "latency_us_max": 0, "buckets": {str(bucket): 1 for bucket in range(30)}}
    MetricMinute.objects.bulk_create(
        MetricMinute(
            project="shop",
            resource=f"projects/shop/subscriptions/{name}",
            event="push",
            at=now - timedelta(minutes=ago),
            response_class="remote_server_5xx",
            response_code=503,
            count=1,
            **sums,
        )
        for name, ago in times
    )
    GaugeRound.objects.create(at=now)
    figures = {"undelivered": 1, "oldest_unacked_seconds": 90, "outstanding": 0, "push_window": 1, "backoff_ms": 500}
    GaugeMinute.objects.create(project="shop", resource="projects/shop/subscriptions/busy", at=now, **figures)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {TABLE}")
    return Subscription.objects.get()


def queries_of(client: Client, page: str) -> list[str]:
    """Return the queries of a page that read minutes."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(f"/admin/{page}").status_code == 200
    return [query["sql"] for query in queries if TABLE in query["sql"]]


def plan(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {'' if connection.vendor == 'postgresql' else 'QUERY PLAN'} {sql}")
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


@pytest.mark.parametrize(
    "page",
    [
        "subscriptions/subscription/",
        "deliveries/delivery/state/{}/live/",
        "deliveries/segment/charts/{}/?range=1h&compare=week",
    ],
)
def test_a_page_looks_the_minutes_of_a_busy_subscription_up(busy: Subscription, client: Client, page: str) -> None:
    plans = [plan(sql) for sql in queries_of(client, page.format(busy.pk))]
    assert plans
    assert [each for each in plans if f"Seq Scan on {TABLE}" in each or f"SCAN {TABLE}" in each] == []


def test_what_all_subscriptions_do_is_added_up_once_for_each_state_of_the_counter(
    busy: Subscription, client: Client
) -> None:
    """The other queries of the first page, for the endpoints that fail, are made each time."""
    now = utcnow()
    lease = {"until": now + timedelta(minutes=1), "counted_to": now, "waiting": 0}
    CountingLease.objects.create(pk=1, counter="embedded", **lease)
    first = len(queries_of(client, OVERVIEW))
    # The minute may have ended meanwhile.
    wait_for(lambda: len(queries_of(client, OVERVIEW)) == first - 1)
    before = client.get(f"/admin/{OVERVIEW}").context["figures"]
    MetricMinute.objects.filter(resource="projects/shop/subscriptions/busy").update(count=100_000)
    CountingLease.objects.update(counted_to=now + timedelta(seconds=1))
    after = client.get(f"/admin/{OVERVIEW}").context["figures"]
    assert dict(figure[:2] for figure in before)["Pushed"] != dict(figure[:2] for figure in after)["Pushed"]
