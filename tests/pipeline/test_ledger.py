"""The ledger without Spark: hours and days that are added up again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from deliveries.models import Metric, MetricDay, MetricHour, MetricMinute
from deliveries.pipeline.counting import ledger

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def metric(model: type[Metric], at: datetime, count: int) -> Metric:
    sums = {"count": count, "bytes": 0, "latency_us_sum": 0, "latency_us_max": 0, "buckets": {}}
    what = {"resource": "projects/p/subscriptions/s", "event": "push", "response_class": "ack", "response_code": 200}
    return model._default_manager.create(project="p", host="", at=at, **what, **sums)


def count_of(row: Metric) -> int:
    return type(row)._default_manager.get(pk=row.pk).count


def rebuild(since: datetime, until: datetime) -> None:
    ledger.rebuild(since=since, until=until, clock=lambda: NOW)


@pytest.mark.parametrize("age", [timedelta(days=7), timedelta(days=7, minutes=-20), timedelta(days=30)])
def test_an_hour_whose_minutes_have_expired_keeps_its_sums(age: timedelta) -> None:
    """Given an hour of which some minutes are left, when it is rebuilt, then it is as it was."""
    hour = (NOW - age).replace(minute=0)
    total = metric(MetricHour, hour, 60)
    metric(MetricMinute, hour + timedelta(minutes=59), 1)

    rebuild(hour, hour + timedelta(hours=1))

    assert count_of(total) == 60


def test_a_day_whose_hours_have_expired_keeps_its_sums() -> None:
    day = (NOW - timedelta(days=90)).replace(hour=0, minute=0)
    total = metric(MetricDay, day, 24)
    metric(MetricHour, day + timedelta(hours=23), 1)

    rebuild(day, day + timedelta(days=1))

    assert count_of(total) == 24


def test_a_time_that_ends_within_an_hour_does_not_cut_it() -> None:
    hour = NOW.replace(hour=3, minute=0)
    totals = metric(MetricHour, hour, 1), metric(MetricDay, hour.replace(hour=0), 1)
    for minute in (5, 55):
        metric(MetricMinute, hour + timedelta(minutes=minute), 10)

    rebuild(hour + timedelta(minutes=3), hour + timedelta(minutes=10))

    assert [count_of(total) for total in totals] == [20, 20]
