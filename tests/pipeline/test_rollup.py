"""The rollup in this process: what it counts, that it counts it once, and what it puts into quarantine."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deliveries.models import MetricDay, MetricHour, MetricMinute, Segment
from deliveries.telemetry.counting import ledger, segments
from deliveries.telemetry.counting.rollup import LEFT_BEHIND, Rollup, backfill
from deliveries.telemetry.counting.segments import QUARANTINE
from deliveries.telemetry.journal import shipping
from deliveries.telemetry.journal.columns import Rows
from tests.pipeline.ground import BEGIN, assert_counted, make_segments, pages_damage, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

EVER = {"since": datetime(2026, 1, 1, tzinfo=UTC), "until": datetime(2027, 1, 1, tzinfo=UTC)}


def test_late_and_disordered_segments_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Given segments that come in the wrong order, when the rollup runs in between, then each is counted once."""
    later = make_segments(tmp_path, range(6, 9), seed=2)
    Rollup(tmp_path, session=spark).once()
    earlier = make_segments(tmp_path, range(3), seed=2)
    Rollup(tmp_path, session=spark).once()
    Rollup(tmp_path, session=spark).once()

    assert_counted([*earlier, *later])


def test_a_rollup_that_knows_nothing_counts_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Given counted segments, and what an older version left of its stream, when the next rollup counts, then only
    new segments are added, and nothing of a stream is left.
    """
    paths = make_segments(tmp_path, range(5), seed=3)
    Rollup(tmp_path, session=spark).once()
    for name in LEFT_BEHIND:
        (tmp_path / name).mkdir()
        (tmp_path / name / paths[0].name).hardlink_to(paths[0])
    paths += make_segments(tmp_path, range(5, 7), seed=3)

    Rollup(tmp_path, session=spark).once()

    assert_counted(paths)
    assert [name for name in LEFT_BEHIND if (tmp_path / name).exists()] == []


def test_a_backfill_counts_only_what_the_rollup_has_not(spark: SparkSession, tmp_path: Path) -> None:
    """Given some segments that are counted and some that are not, when a backfill and then the rollup go over all of
    them, then each is counted once.
    """
    paths = make_segments(tmp_path, range(4), seed=4)
    Rollup(tmp_path, session=spark).once()
    paths += make_segments(tmp_path, range(4, 8), seed=4)

    added = backfill(tmp_path, session=spark, **EVER)
    again = backfill(tmp_path, session=spark, **EVER)
    Rollup(tmp_path, session=spark).once()

    assert (added.segments, added.skipped) == (4, 4)
    assert (again.segments, again.skipped) == (0, 8)
    assert_counted(paths)


def test_segments_of_a_bucket_are_counted_by_a_backfill_and_by_the_rollup(
    spark: SparkSession, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given more segments in the bucket than are copied at a time, then each is counted once, and no copy stays.

    A folder stands for the bucket: tests/integration/pipeline/test_journal_bucket.py has an S3 server.
    """
    monkeypatch.setattr(segments, "FILES_AT_A_TIME", 2)
    settings.JOURNAL, settings.JOURNAL_BUCKET = str(tmp_path / "journal"), str(tmp_path / "bucket")
    paths = make_segments(tmp_path / "copies", range(5), seed=9)
    shutil.copytree(tmp_path / "copies", tmp_path / "journal")
    assert shipping.ship(tmp_path / "journal") == 5
    begin = datetime.fromtimestamp(BEGIN, UTC)

    added = backfill(tmp_path / "journal", session=spark, since=begin, until=begin + timedelta(seconds=8))
    Rollup(tmp_path / "journal", session=spark).once()

    assert added.segments == 2
    assert_counted(paths)
    fetched = tmp_path / "journal" / shipping.FETCHED
    segments.fetch_waiting(fetched / "rollup")
    assert [path for path in fetched.rglob("*") if path.is_file()] == []


def test_a_backfill_counts_only_the_requested_time(spark: SparkSession, tmp_path: Path) -> None:
    """Given segments of an hour and of the day after, when the hour is backfilled, then only its segments count."""
    inside = make_segments(tmp_path, range(2), seed=5)
    make_segments(tmp_path, [20_000], seed=5)
    begin = datetime.fromtimestamp(BEGIN, UTC)

    backfill(tmp_path, session=spark, since=begin, until=begin + timedelta(hours=1))

    assert_counted(inside)


def test_unreadable_files_are_put_into_quarantine_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    """Given good segments among truncated and foreign files, when the folder is counted, then the good ones count, and
    the others are in quarantine, each noted with its reason.
    """
    good = make_segments(tmp_path, range(3), seed=6)
    truncated, other_columns, other_types = make_segments(tmp_path, range(3, 6), seed=6)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    pq.write_table(pa.table({"event": ["push"], "a": [1]}), other_columns)
    table = pq.read_table(other_types)
    pq.write_table(table.set_column(1, "time", table["time"].cast(pa.string())), other_types)
    foreign = good[0].with_name("holiday.csv")
    foreign.write_text("a,b\n")

    Rollup(tmp_path, session=spark).once()

    assert_counted(good)
    reasons = dict(Segment.objects.filter(state="quarantined").values_list("name", "reason"))
    assert reasons[truncated.name].startswith("not a whole Parquet file: ")
    assert reasons[other_columns.name] == "foreign: no column subscription, time, topic"
    assert reasons[other_types.name] == "foreign: column time is string and not timestamp[us, tz=UTC]"
    assert reasons[foreign.name] == "foreign: not a name of ours"
    assert {path.name for path in (tmp_path / QUARANTINE).iterdir()} == set(reasons)


@pytest.mark.parametrize("way", ["rollup", "backfill"])
def test_a_segment_that_cannot_be_counted_does_not_stop_the_others(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """Given a segment with a good footer and damaged pages, and one with a time beyond every date, when the folder is
    counted, then these two are in quarantine with their reasons, and the others count.
    """
    good = make_segments(tmp_path, range(3), seed=11)
    [damaged] = make_segments(tmp_path, [3], seed=11)
    pages_damage(damaged)
    shared = {"event": "push", "project": "p", "subscription": "s", "outcome": "ack", "time": 60_000 * 10**12 * 30}
    dateless = write_segment(tmp_path, 4, [Rows(1, {"message_id": ["1"]}, shared)])

    def count() -> None:
        Rollup(tmp_path, session=spark).once() if way == "rollup" else backfill(tmp_path, session=spark, **EVER)

    count()

    assert_counted(good)
    reasons = dict(Segment.objects.filter(state="quarantined").values_list("name", "reason"))
    assert reasons.keys() == {damaged.name, dateless.name}
    assert reasons[damaged.name].startswith("it cannot be read: ")
    assert reasons[dateless.name].startswith("it cannot be counted: ")
    assert {path.name for path in (tmp_path / QUARANTINE).iterdir()} == set(reasons)
    good += make_segments(tmp_path, range(5, 7), seed=11)
    count()
    assert_counted(good)


def test_segments_of_an_older_release_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    """Given a segment of a release without the last columns, when it is counted, then they read as null."""
    [path] = make_segments(tmp_path, [1], seed=7)
    pq.write_table(pq.read_table(path).drop_columns(["worker", "schema_version", "push_window"]), path)

    Rollup(tmp_path, session=spark).once()

    assert_counted([path])


def test_hours_and_days_are_rebuilt_from_the_minutes(spark: SparkSession, tmp_path: Path) -> None:
    """Given metrics whose hours and days were damaged, when they are rebuilt from the minutes, then they are right."""
    paths = make_segments(tmp_path, range(6), seed=9)
    Rollup(tmp_path, session=spark).once()
    MetricHour.objects.update(count=1)
    MetricDay.objects.update(latency_us_sum=0, buckets={})

    ledger.rebuild(**EVER, clock=lambda: datetime.fromtimestamp(BEGIN, UTC) + timedelta(days=1))

    assert_counted(paths)


def test_texts_that_no_column_takes_are_clipped(spark: SparkSession, tmp_path: Path) -> None:
    """Given an event with texts that no column takes, then they are clipped, and the event is counted."""
    shared = {"event": "push" * 9, "project": "p" * 99, "subscription": "s\0" * 500, "host": "h" * 999, "region": ""}
    events = Rows(1, {"message_id": ["1"]}, {**shared, "time": BEGIN * 10**6, "outcome": "o" * 99})
    write_segment(tmp_path, 1, [events])

    Rollup(tmp_path, session=spark).once()

    row = MetricMinute.objects.get()
    assert (row.resource, len(row.host), row.count) == ("s" * 350, 260, 1)


def test_a_segment_with_nothing_to_count_is_noted(spark: SparkSession, tmp_path: Path) -> None:
    """Given a segment with nothing to count, when the rollup reads it, then the ledger has it as counted."""
    shared = {"event": "drop", "time": BEGIN * 10**6, "outcome": "drop"}
    path = write_segment(tmp_path, 1, [Rows(1, {"message_id": ["1"]}, shared)])

    Rollup(tmp_path, session=spark).once()

    assert list(Segment.objects.values_list("name", "rows")) == [(path.name, 1)]
    assert not MetricMinute.objects.exists()
