"""The journal in a bucket, on S3 and Cloud Storage: segments move there, and are counted, found and deleted there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deliveries import tasks
from deliveries.inspection.attempts import Attempt, AttemptSearch
from deliveries.models import Segment, ShippedSegment
from deliveries.telemetry.counting import embedded, segments
from deliveries.telemetry.export import readiness
from deliveries.telemetry.export.probes import Status
from deliveries.telemetry.journal import shipping, upkeep
from deliveries.telemetry.journal.alarm import alarms
from deliveries.telemetry.series.expiry import expire_segments
from pushhub.common import stores
from pushhub.common.stores import Store
from tests.objectstores import BUCKET, SECRET, STORES, ObjectStore
from tests.pipeline.ground import BEGIN, assert_counted, make_segments
from tests.ports import free_port

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]


@pytest.fixture(params=STORES, ids=lambda kind: kind.scheme)
def kind(request: pytest.FixtureRequest) -> ObjectStore:
    """The kind of object store that has the bucket."""
    kind: ObjectStore = request.param
    return kind


@pytest.fixture
def port(kind: ObjectStore, monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> Iterator[int]:
    """The port at which this process expects the store, without a server yet. The journal has a folder of its own."""
    settings.JOURNAL, settings.JOURNAL_BUCKET = str(tmp_path / "journal"), f"{kind.scheme}://{BUCKET}/journal"
    port = free_port()
    for name, value in kind.environment(port).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(upkeep, "_bucket_retry_at", 0.0)
    # A turn ends with its work, however busy the machine is.
    monkeypatch.setattr(shipping, "TURN_SECONDS", 600.0)
    monkeypatch.setitem(embedded.EmbeddedCounter.turn.__kwdefaults__, "seconds", 600.0)
    stores._filesystem.cache_clear()
    embedded._counter_of.cache_clear()
    yield port
    stores._filesystem.cache_clear()
    embedded._counter_of.cache_clear()


def segments_seal(tmp_path: Path, count: int) -> list[Path]:
    """Seal segments into the journal; return copies of them."""
    paths = make_segments(tmp_path / "copies", range(count), seed=1)
    shutil.copytree(tmp_path / "copies", tmp_path / "journal")
    return paths


def bucket_names(settings: Any) -> list[str]:
    """Return the names of the bucket's files, in order."""
    return [file.name for file in Store(settings.JOURNAL_BUCKET).files()]


def events_of(message_id: int) -> list[Attempt]:
    """Return the events that the segments have of a message."""
    search = AttemptSearch(message_id)
    search.begin()
    search.read(lambda events: [((BEGIN + 5) * 1000,) * 2])
    return search.events


def test_segments_are_counted_and_found_in_the_bucket_and_expire_there(
    kind: ObjectStore, port: int, tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = segments_seal(tmp_path, 3)
    monkeypatch.setattr(segments, "FILES_AT_A_TIME", 2)
    message_id = int(pq.read_table(paths[1], columns=["message_id"])["message_id"][0].as_py())
    before = events_of(message_id)
    assert before

    with kind.server(port):
        assert tasks.ship_segments() == 3
        assert list(shipping.waiting(tmp_path / "journal")) == []
        names = [f"{path.parent.parent.name}/{path.parent.name}/{path.name}" for path in paths]
        assert bucket_names(settings) == sorted(names)
        assert events_of(message_id) == before

        assert [tasks.count_segments() for _ in range(3)] == [2, 1, 0]
        assert_counted(paths)
        fetched = tmp_path / "journal" / shipping.FETCHED
        assert list((fetched / "embedded").iterdir()) == [], "copies of counted segments are removed"

        assert shipping.expire(before_ms=(BEGIN + 10) * 1000) == 2
        assert bucket_names(settings) == [f"dt=2026-11-21/hour=04/{paths[2].name}"]
        settings.JOURNAL_DAYS = -100_000
        assert expire_segments(tmp_path / "journal") == 1
        assert bucket_names(settings) == []


def test_segments_that_a_restored_database_does_not_know_are_noted(
    kind: ObjectStore, port: int, tmp_path: Path, settings: Any
) -> None:
    """Given a database that is older than some segments of the bucket, when those of a time are noted, then they are
    counted, found and deleted as others are.
    """
    paths = segments_seal(tmp_path, 4)
    message_id = int(pq.read_table(paths[1], columns=["message_id"])["message_id"][0].as_py())
    before = events_of(message_id)
    with kind.server(port):
        assert tasks.ship_segments() == 4
        ShippedSegment.objects.filter(name__in=[path.name for path in paths[1:]]).delete()
        Store(settings.JOURNAL_BUCKET).write_bytes("notes.txt", b"not of the journal")

        times = {"from_ms": (BEGIN - 1) * 1000, "before_ms": (BEGIN + 15) * 1000}
        assert [shipping.note_forgotten(**times) for _ in range(2)] == [2, 0]

        assert tasks.count_segments() == 3
        assert_counted(paths[:3])
        assert events_of(message_id) == before
        shipping.expire(before_ms=(BEGIN + 60) * 1000)
        assert len(bucket_names(settings)) == 2


def test_a_segment_that_was_uploaded_before_a_crash_is_moved_again_and_counted_once(
    kind: ObjectStore, port: int, tmp_path: Path, settings: Any
) -> None:
    paths = segments_seal(tmp_path, 2)
    message_id = int(pq.read_table(paths[1], columns=["message_id"])["message_id"][0].as_py())
    before = events_of(message_id)

    with kind.server(port):
        assert tasks.ship_segments() == 2
        assert tasks.count_segments() == 2
        shutil.copytree(tmp_path / "copies", tmp_path / "journal", dirs_exist_ok=True)
        assert events_of(message_id) == before, "no attempt is shown twice"
        assert tasks.ship_segments() == 2
        assert tasks.count_segments() == 0
        assert_counted(paths)

        lost = make_segments(tmp_path / "lost", [7], seed=2)[0]
        shutil.copytree(tmp_path / "lost", tmp_path / "journal", dirs_exist_ok=True)
        tasks.ship_segments()
        Store(settings.JOURNAL_BUCKET).delete(f"{lost.parent.parent.name}/{lost.parent.name}/{lost.name}")
        assert tasks.count_segments() == 0
        assert not ShippedSegment.objects.filter(is_counted=False).exists(), "a lost segment does not stop the others"
    assert Segment.objects.count() == 2


def test_segments_wait_while_the_bucket_is_unavailable_and_move_there_later(
    kind: ObjectStore, port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "GCS_RETRY_SECONDS", 1)
    paths = segments_seal(tmp_path, 3)

    assert upkeep.ship_segments(clock=lambda: 1000.0) == 0
    assert len(list(shipping.waiting(tmp_path / "journal"))) == 3
    [alarm] = alarms()
    assert (alarm.waiting, alarm.lost) == (3, 0)
    component = readiness.journal()
    assert (component.status, component.reason) == (Status.DEGRADED, "3 segments wait for the bucket")
    assert tasks.count_segments() == 0, "no segment is in the bucket"

    with kind.server(port):
        stores._filesystem.cache_clear()
        assert upkeep.ship_segments(clock=lambda: 1001.0) == 0, "a bucket that failed is not tried again for a while"
        assert upkeep.ship_segments(clock=lambda: 1000.0 + upkeep.BUCKET_RETRY_SECONDS) == 3
        assert alarms() == []
        assert readiness.journal().status == Status.OK
        assert tasks.count_segments() == 3
        assert_counted(paths)
    assert SECRET not in caplog.text
