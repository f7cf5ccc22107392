"""The embedded counter counts what Spark would count, each segment once, and only while Spark does not count."""

from __future__ import annotations

import errno
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.db import OperationalError

from deliveries import tasks
from deliveries.models import CountingLease, MetricMinute, Segment
from deliveries.telemetry.counting import embedded, ledger, segments
from deliveries.telemetry.counting.embedded import FILES_A_BATCH, EmbeddedCounter
from deliveries.telemetry.counting.lease import LEASE, RENEW, Counter, Lease, state_line
from deliveries.telemetry.counting.rollup import Rollup
from deliveries.telemetry.counting.segments import QUARANTINE
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.columns import Rows
from deliveries.telemetry.series.coverage import counting
from tests.pipeline.ground import BEGIN, assert_counted, make_segments, pages_damage, write_segment

pytestmark = pytest.mark.django_db(transaction=True)


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 14, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


def line(clock: Clock) -> str:
    return state_line(counting(clock=clock), clock=clock)


def test_segments_become_metrics(tmp_path: Path) -> None:
    """Given segments over the end of an hour, when they are counted, then the sums are those added up by hand."""
    paths = make_segments(tmp_path, range(8), seed=1)
    counter = EmbeddedCounter(tmp_path)

    assert counter.turn() == 8
    assert counter.turn() == 0

    assert_counted(paths)


def test_late_segments_are_counted_and_known_ones_are_not_counted_again(tmp_path: Path) -> None:
    paths = make_segments(tmp_path, range(6, 9), seed=2)
    counter = EmbeddedCounter(tmp_path)
    counter.turn()
    paths += make_segments(tmp_path, range(3), seed=2)

    assert counter.turn() == 3
    assert EmbeddedCounter(tmp_path).turn() == 0, "a new process finds them in the ledger"

    assert_counted(paths)


def test_a_turn_ends_in_the_midst_of_a_batch(tmp_path: Path) -> None:
    """Given a time of which half is over after a few files of a batch, then these are counted, and the others later."""
    paths = make_segments(tmp_path, range(FILES_A_BATCH), seed=3, count=2)
    ticks = iter(range(1000))
    counter = EmbeddedCounter(tmp_path, monotonic=lambda: float(next(ticks)))

    assert counter.turn(seconds=4.5) == 2
    assert CountingLease.objects.get().waiting == FILES_A_BATCH - 2
    assert counter.turn(seconds=1000) == FILES_A_BATCH - 2

    assert_counted(paths)


def test_a_turn_ends_in_the_midst_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a segment that takes several transactions, when a turn ends after each, then it is counted once."""
    monkeypatch.setattr(ledger, "FIRST_KEYS", 1)
    monkeypatch.setattr(ledger, "MOST_KEYS", 1)
    paths = make_segments(tmp_path, range(1), seed=3, count=20)
    counter = EmbeddedCounter(tmp_path)

    counts = [counter.turn(seconds=0.0)]
    assert counts == [0], "a turn without any time does nothing"
    ticks = iter(range(10_000))
    counter = EmbeddedCounter(tmp_path, monotonic=lambda: float(next(ticks)))
    while CountingLease.objects.get().waiting:
        counts.append(counter.turn(seconds=1.5))
    assert sum(counts) == 1
    assert len(counts) > 3, "each turn ended after one transaction"

    assert_counted(paths)


def test_a_turn_ends_in_time_and_the_next_one_continues(tmp_path: Path) -> None:
    """Given more segments than fit a turn, when turns follow each other, then all segments are counted."""
    paths = make_segments(tmp_path, range(FILES_A_BATCH + 3), seed=3, count=2)
    ticks = iter(range(1000))
    counter = EmbeddedCounter(tmp_path, monotonic=lambda: float(next(ticks)))

    counted = counter.turn(seconds=FILES_A_BATCH + 0.5)
    assert 2 < counted < len(paths)
    assert CountingLease.objects.get().waiting == len(paths) - counted
    assert counter.turn(seconds=1000) == len(paths) - counted

    assert_counted(paths)


def test_files_that_cannot_be_counted_are_put_into_quarantine(tmp_path: Path) -> None:
    """Given good segments among truncated, foreign and damaged ones and two without a valid time, when the folder is
    counted, then the good ones count, and the others are in quarantine, each with its reason.
    """
    good = make_segments(tmp_path, range(3), seed=4)
    truncated, foreign, damaged = make_segments(tmp_path, range(3, 6), seed=4)
    truncated.write_bytes(truncated.read_bytes()[:-100])
    pq.write_table(pa.table({"event": ["push"], "a": [1]}), foreign)
    pages_damage(damaged)
    shared = {"event": "push", "project": "p", "subscription": "s", "outcome": "ack"}
    dateless = write_segment(tmp_path, 6, [Rows(1, {"message_id": ["1"]}, {**shared, "time": 60_000 * 10**12 * 30})])
    timeless = write_segment(tmp_path, 7, [Rows(1, {"message_id": ["1"]}, shared)])

    assert EmbeddedCounter(tmp_path).turn() == 3

    assert_counted(good)
    reasons = dict(Segment.objects.filter(state="quarantined").values_list("name", "reason"))
    assert reasons[truncated.name].startswith("not a whole Parquet file: ")
    assert reasons[foreign.name] == "foreign: no column subscription, time, topic"
    assert reasons[damaged.name].startswith("it cannot be read: ")
    assert reasons[dateless.name].startswith("it cannot be counted: ")
    assert reasons[timeless.name] == "it cannot be counted: an event has no time"
    assert {path.name for path in (tmp_path / QUARANTINE).iterdir()} == set(reasons)


def test_a_segment_that_disappears_while_it_waits_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_segments(tmp_path, range(3), seed=5)
    real = embedded.segment_sums
    monkeypatch.setattr(embedded, "segment_sums", lambda path: paths[1].unlink(missing_ok=True) or real(path))

    EmbeddedCounter(tmp_path).turn()

    assert set(Segment.objects.values_list("name", "state")) == {(paths[n].name, "counted") for n in (0, 2)}


def test_a_disk_that_fails_leaves_the_segments_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a read error that is not the file's fault, then no segment is quarantined, and the next turn counts all."""
    paths = make_segments(tmp_path, range(2), seed=6)
    counter = EmbeddedCounter(tmp_path)

    def fail(path: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as broken:
        broken.setattr(embedded, "segment_sums", fail)
        with pytest.raises(PermissionError):
            counter.turn()
    counter.turn()

    assert_counted(paths)


def test_a_journal_that_cannot_be_sealed_hides_no_segments_from_the_rollup(tmp_path: Path) -> None:
    (tmp_path / files.OPEN / "a-1-0000000000001-1.journal").mkdir(parents=True)
    [segment] = make_segments(tmp_path, range(1), seed=5, count=2)
    rollup = Rollup(tmp_path, session=Mock())

    rollup._look()

    assert list(rollup._counter.waiting) == [segment.name]


def test_a_footer_that_cannot_be_read_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a process without free file handles, then no segment is quarantined, and the next turn counts all."""
    paths = make_segments(tmp_path, range(2), seed=6)
    counter = EmbeddedCounter(tmp_path)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as broken:
        broken.setattr(pq, "read_schema", fail)
        with pytest.raises(OSError, match="Too many open files"):
            counter.turn()
    assert not Segment.objects.exists()
    counter.turn()

    assert_counted(paths)


def test_segments_that_were_found_in_an_outage_are_counted_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a database that is away between the listing of a folder and the look into the ledger, then the next turn
    finds the same segments.
    """
    paths = make_segments(tmp_path, range(2), seed=6)
    counter = EmbeddedCounter(tmp_path)

    def fail(names: Any) -> Any:
        raise OperationalError("the connection is lost")

    with monkeypatch.context() as away:
        away.setattr(ledger, "noted", fail)
        with pytest.raises(OperationalError):
            counter.turn()

    assert counter.turn() == 2
    assert_counted(paths)


def test_a_file_that_cannot_be_put_aside_does_not_hide_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = make_segments(tmp_path, range(3), seed=6)
    paths[0].write_bytes(b"damaged")
    counter = EmbeddedCounter(tmp_path)

    def fail(*arguments: Any, **words: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(segments.shutil, "move", fail)
        with pytest.raises(OSError, match="No space left"):
            counter.turn()

    assert counter.turn() == 2
    assert_counted(paths[1:])


def test_the_oldest_segments_of_all_processes_are_counted_first(tmp_path: Path) -> None:
    """Given a process whose name comes first and whose segment is the youngest, then the others are counted first."""
    paths = make_segments(tmp_path, range(3), seed=6)
    youngest = paths[2].rename(paths[2].with_name(paths[2].name.replace("host-1-", "a-1-")))
    ticks = iter(range(1000))
    counter = EmbeddedCounter(tmp_path, monotonic=lambda: float(next(ticks)))

    assert counter.turn(seconds=4.5) == 2
    assert not Segment.objects.filter(name=youngest.name).exists()


def test_segments_of_an_older_release_are_counted(tmp_path: Path) -> None:
    [path] = make_segments(tmp_path, [1], seed=7)
    pq.write_table(pq.read_table(path).drop_columns(["host", "bytes", "worker", "schema_version"]), path)

    EmbeddedCounter(tmp_path).turn()

    assert MetricMinute.objects.exists()
    assert set(MetricMinute.objects.values_list("host", "bytes")) == {("", 0)}


def test_an_attempt_that_was_given_up_is_no_push(tmp_path: Path) -> None:
    """Given pushes that a stopping worker gave up, when they are counted, then metrics don't have them.

    Another worker repeats them, and `/metrics` doesn't count them either. Their segments are done.
    """
    push = {"event": "push", "project": "p", "subscription": "projects/p/subscriptions/s", "time": BEGIN * 10**6}
    given_up = {**push, "outcome": "release", "reason": "aborted", "response_code": 0, "latency_us": 9}
    acked = {**push, "outcome": "ack", "response_code": 200, "latency_us": 9}
    write_segment(tmp_path, 1, [Rows(1, {"message_id": ["1"]}, each) for each in (given_up, acked)])
    write_segment(tmp_path, 2, [Rows(1, {"message_id": ["1"]}, given_up)])

    assert EmbeddedCounter(tmp_path).turn() == 2

    assert list(MetricMinute.objects.values_list("response_class", "count")) == [("ack", 1)]
    assert [(segment.state, segment.rows) for segment in Segment.objects.order_by("name")] == [
        (Segment.State.COUNTED, 2),
        (Segment.State.COUNTED, 1),
    ]


def test_a_segment_that_comes_right_after_a_look_is_found(tmp_path: Path) -> None:
    """Given a segment within the same tick of the disk's clock as the look before, then the next look finds it."""
    [first] = make_segments(tmp_path, range(1), seed=4, count=2)
    ticked = first.parent.stat().st_mtime_ns
    counter = EmbeddedCounter(tmp_path)
    assert counter.turn() == 1
    make_segments(tmp_path, range(1, 2), seed=4, count=2)
    os.utime(first.parent, ns=(ticked, ticked))

    assert counter.turn() == 1


def test_texts_that_no_column_takes_are_clipped(tmp_path: Path) -> None:
    shared = {"event": "push" * 9, "project": "p" * 99, "subscription": "s\0" * 500, "host": "h" * 999, "region": ""}
    write_segment(tmp_path, 1, [Rows(1, {"message_id": ["1"]}, {**shared, "time": BEGIN * 10**6, "outcome": "o" * 99})])

    EmbeddedCounter(tmp_path).turn()

    row = MetricMinute.objects.get()
    assert (row.resource, len(row.host), row.count) == ("s" * 350, 260, 1)


def test_spark_takes_over_and_hands_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Given that Spark has the lease, then the embedded counter counts nothing until Spark releases it or it lapses."""
    caplog.set_level(logging.INFO)
    clock = Clock()
    counter = EmbeddedCounter(tmp_path, clock=clock)
    spark = Lease(Counter.SPARK, clock=clock)
    paths = make_segments(tmp_path, [1], seed=8)
    assert counter.turn() == 1

    spark.take()
    paths += make_segments(tmp_path, [2], seed=8)
    assert counter.turn() == 0
    clock.now += LEASE - timedelta(seconds=1)
    assert counter.turn() == 0
    spark.renew([])
    clock.now += LEASE - timedelta(seconds=1)
    assert counter.turn() == 0

    clock.now += timedelta(seconds=1)
    assert counter.turn() == 1, "the lease has lapsed"

    spark.take()
    paths += make_segments(tmp_path, [3], seed=8)
    assert counter.turn() == 0
    spark.release()
    assert counter.turn() == 1, "the lease was released"
    assert_counted(paths)
    lines = [record.message for record in caplog.records if "counted" in record.message]
    assert lines == [
        "attempts are counted by the embedded counter",
        "attempts are counted by Spark",
        "attempts are counted by Spark from now on",
        "attempts are counted by the embedded counter",
        "attempts are counted by Spark",
        "attempts are counted by Spark from now on",
        "attempts are counted by the embedded counter",
    ]


def test_a_segment_that_both_count_is_counted_once(tmp_path: Path) -> None:
    """Given a counter that has listed segments, when another one counts them first, then they are not added again."""
    paths = make_segments(tmp_path, range(3), seed=9)
    slow, quick = EmbeddedCounter(tmp_path), EmbeddedCounter(tmp_path)
    ticks = iter([0.0, 9.0])
    slow._monotonic = lambda: next(ticks)
    assert slow.turn(seconds=1) == 0, "it listed them, but its time was over"
    assert quick.turn() == 3

    slow._monotonic = lambda: 0.0
    assert slow.turn() == 0

    assert_counted(paths)


def test_the_state_says_up_to_when_segments_are_counted(tmp_path: Path) -> None:
    """Given waiting segments, then everything is counted up to the time at which the oldest one was opened."""
    clock = Clock()
    assert line(clock) == "nothing has been counted yet"
    counter = EmbeddedCounter(tmp_path, clock=clock)
    counter.turn()
    assert line(clock) == "counted up to 14:05, 0 segments waiting, by the embedded counter"

    [path] = make_segments(tmp_path, [0], seed=10)
    counter.turn(seconds=0)
    assert line(clock) == "counted up to 04:57, 1 segment waiting, by the embedded counter"

    Lease(Counter.SPARK, clock=clock).renew([path.name, make_segments(tmp_path, [13], seed=10)[0].name])
    assert line(clock) == "counted up to 04:57, 2 segments waiting, by Spark"

    clock.now += timedelta(days=1)
    stopped = "counted up to 2026-11-21 04:57, 2 segments waiting, by Spark, which has stopped"
    assert line(clock) == stopped


def test_an_idle_counter_renews_its_lease_and_writes_nothing_else(tmp_path: Path) -> None:
    clock = Clock()
    counter = EmbeddedCounter(tmp_path, clock=clock)
    counter.turn()
    first = CountingLease.objects.get().until

    clock.now += RENEW - timedelta(seconds=1)
    counter.turn()
    assert CountingLease.objects.get().until == first
    clock.now += timedelta(seconds=1)
    counter.turn()
    assert CountingLease.objects.get().until == clock.now + LEASE


def test_a_counter_that_is_behind_logs_it_once_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    counter = EmbeddedCounter(tmp_path, clock=clock)
    make_segments(tmp_path, [0], seed=11)
    for _ in range(13):
        counter.turn(seconds=0)
        clock.now += timedelta(seconds=10)

    lines = [record.message for record in caplog.records if "waiting" in record.message]
    assert lines == ["counted up to 04:57, 1 segment waiting, by the embedded counter"] * 2


def test_the_task_counts_the_journal(tmp_path: Path, settings: Any) -> None:
    settings.JOURNAL = str(tmp_path)
    paths = make_segments(tmp_path, range(2), seed=12)

    assert tasks.count_segments() == 2
    settings.JOURNAL = ""
    assert tasks.count_segments() == 0

    assert_counted(paths)
