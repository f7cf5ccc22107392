"""The ledger, without Spark: it adds sums in short transactions, and rebuilds hours and days."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from deliveries.models import Metric, MetricDay, MetricHour, MetricMinute, Segment
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.series.expiry import MINUTES_KEPT

pytestmark = pytest.mark.django_db(transaction=True)

NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def metric(model: type[Metric], at: datetime, count: int) -> Metric:
    sums = {"count": count, "bytes": 0, "latency_us_sum": 0, "latency_us_max": 0, "buckets": {}}
    key = {"resource": "projects/p/subscriptions/s", "event": "push", "response_class": "ack", "response_code": 200}
    return model._default_manager.create(project="p", host="", at=at, **key, **sums)


def count_of(row: Metric) -> int:
    return type(row)._default_manager.get(pk=row.pk).count


def rebuild(since: datetime, until: datetime) -> None:
    ledger.rebuild(since=since, until=until, clock=lambda: NOW)


@pytest.mark.parametrize("age", [MINUTES_KEPT, MINUTES_KEPT - timedelta(minutes=20), timedelta(days=30)])
def test_an_hour_whose_minutes_have_expired_keeps_its_sums(age: timedelta) -> None:
    """Given an hour of which only some minutes are left, when it is rebuilt, then its sums stay as they were."""
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


def test_a_rebuild_of_a_part_of_an_hour_covers_the_whole_hour() -> None:
    hour = NOW.replace(hour=3, minute=0)
    totals = metric(MetricHour, hour, 1), metric(MetricDay, hour.replace(hour=0), 1)
    for minute in (5, 55):
        metric(MetricMinute, hour + timedelta(minutes=minute), 10)

    rebuild(hour + timedelta(minutes=3), hour + timedelta(minutes=10))

    assert [count_of(total) for total in totals] == [20, 20]


def partials(segment: str, resources: Iterable[int]) -> list[ledger.Partial]:
    """Return the sums of one attempt per subscription."""
    return [
        ledger.Partial(
            segment, (f"projects/p/subscriptions/{number:05}", "push", NOW, "ack", 200, ""), ledger.Sums("p", 1)
        )
        for number in resources
    ]


def test_a_large_batch_leaves_room_for_other_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the sums of many subscriptions, when they are added in short transactions, then another counter can add
    sums in between, even to the same rows and from the same segments, and each segment is counted once.
    """
    for name in ("FIRST_KEYS", "LEAST_KEYS", "MOST_KEYS"):
        monkeypatch.setattr(ledger, name, 10)
    batch = [*partials("a", range(100)), *partials("b", range(50, 100)), *partials("c", range(5))]
    transaction = ledger.only_writer
    count, written = 0, []

    @contextmanager
    def interrupted() -> Iterator[None]:
        nonlocal count
        count += 1
        if count == 4:
            ledger.add_partials([*partials("b", range(50, 100)), *partials("d", range(100))], job="other")
        with transaction():
            before = MetricMinute.objects.count()
            yield
            written.append(MetricMinute.objects.count() - before)

    monkeypatch.setattr(ledger, "only_writer", interrupted)

    added = ledger.add_partials(batch, job="test")

    assert max(written) <= 10
    assert (added.segments, added.skipped, added.rows) == (2, 0, 105)
    assert dict(Segment.objects.values_list("name", "job")) == {"a": "test", "b": "other", "c": "test", "d": "other"}
    assert set(Segment.objects.values_list("state", flat=True)) == {"counted"}
    for model in (MetricMinute, MetricHour, MetricDay):
        sums = model._default_manager.order_by("resource").values_list("count", flat=True)
        assert list(sums) == [3] * 5 + [2] * 45 + [3] * 50, model


def test_a_slow_database_makes_transactions_smaller() -> None:
    pace = ledger.Pace()
    pace.took(ledger.TRANSACTION_SECONDS * 0.7)
    assert pace.keys == ledger.FIRST_KEYS
    pace.took(ledger.TRANSACTION_SECONDS * 1.1)
    assert pace.keys == ledger.FIRST_KEYS // 2
    for _ in range(9):
        pace.took(1.0)
    assert pace.keys == ledger.LEAST_KEYS
    for _ in range(9):
        pace.took(0.0)
    assert pace.keys == ledger.MOST_KEYS


def test_latencies_of_a_row_are_added_up() -> None:
    """Given a row, when sums of the same key are added, then its columns are totals, and the maximum is the larger."""
    key = ("projects/p/subscriptions/s", "push", NOW, "ack", 200, "")
    ledger.add_partials([ledger.Partial("a", key, ledger.Sums("p", 3, 30, 9, 5, {1: 2, 7: 1}))], job="test")
    ledger.add_partials([ledger.Partial("b", key, ledger.Sums("p", 2, 20, 7, 4, {7: 1, 9: 1}))], job="test")

    row = MetricMinute.objects.get()
    assert (row.count, row.bytes, row.latency_us_sum, row.latency_us_max) == (5, 50, 16, 5)
    assert row.buckets == {"1": 2, "7": 2, "9": 1}


def test_a_rebuild_takes_a_few_resources_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "RESOURCES_A_TRANSACTION", 10)
    ledger.add_partials(partials("a", range(25)), job="test")
    MetricHour.objects.update(count=0)
    MetricDay.objects.update(count=0)
    transaction, count = ledger.only_writer, 0

    def counted() -> AbstractContextManager[None]:
        nonlocal count
        count += 1
        return transaction()

    monkeypatch.setattr(ledger, "only_writer", counted)

    rebuild(NOW - timedelta(hours=1), NOW + timedelta(hours=1))

    assert count == 6, "three for the hour and three for the day"
    assert set(MetricHour.objects.values_list("count", flat=True)) == {1}
    assert set(MetricDay.objects.values_list("count", flat=True)) == {1}
