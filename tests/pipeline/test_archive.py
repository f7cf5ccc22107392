"""The archive: every message once, readable by others, and no message let go before it is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from deliveries import retention
from deliveries.models import ArchiveFile, Delivery, Message
from deliveries.pipeline import archive, archivereading
from deliveries.pipeline.archive import Archiver, only_archiver, reached
from deliveries.pipeline.service import database_url
from deliveries.rules.payload import NewMessage, publish_time_text
from deliveries.services import message_publish
from pushhub.errors import FailedPrecondition
from subscriptions import services
from subscriptions.selectors import topic_get

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.django_db(transaction=True)

ORDERS = "projects/shop/topics/orders"
RETURNS = "projects/depot/topics/returns"
NOW = {"closed_ms": -1000}


@pytest.fixture(autouse=True)
def small(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few messages, so that a run has several steps."""
    monkeypatch.setattr(archive, "RANGE_ROWS", 40)
    monkeypatch.setattr(archive, "STEP_RANGES", 2)
    monkeypatch.setattr(retention, "SETTLED_GRACE_MS", -1000)


def publish(topic: str, count: int, *, start: int = 0) -> list[str]:
    services.topic_create(name=topic, topic={}) if start == 0 else None
    messages = [
        NewMessage(f"{topic} {start + number}".encode(), {"n": str(number), "語": "値"} if number % 2 else {}, "k")
        for number in range(count)
    ]
    return message_publish(topic=topic_get(name=topic), messages=messages)


def read(root: Path) -> list[dict[str, Any]]:
    """What DuckDB finds, from the files that the manifest names."""
    paths = [str(root / row.path) for row in ArchiveFile.objects.all()]
    if not paths:
        return []
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        found = duck.execute(
            "SELECT project, topic, message_id, publish_time, data, attributes, ordering_key, dt"
            " FROM read_parquet(?, hive_partitioning = true) ORDER BY message_id",
            [paths],
        )
        names = [column[0] for column in found.description or []]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def assert_archived(root: Path, ids: list[str]) -> None:
    """Each message once, as it was published."""
    rows = read(root)
    assert [row["message_id"] for row in rows] == sorted(ids)
    for row in rows:
        number = int(bytes(row["data"]).decode().split()[1])
        assert row["attributes"] == ({"n": str(number % 100), "語": "値"} if number % 2 else {})
        assert row["topic"] in (ORDERS, RETURNS)
        assert row["topic"].split("/")[1] == row["project"]
        shown = publish_time_text(int(row["message_id"]))
        assert row["publish_time"].isoformat(timespec="milliseconds").startswith(shown.removesuffix("Z"))
        assert str(row["dt"]) == shown[:10]
    assert sum(row.rows for row in ArchiveFile.objects.all()) == len(ids)


def test_messages_are_archived_once_and_read_by_duckdb(spark: SparkSession, tmp_path: Path) -> None:
    archiver = Archiver(tmp_path, session=spark)
    ids = publish(ORDERS, 100) + publish(RETURNS, 100)

    done = archiver.run(**NOW)
    assert (done.messages, reached()) == (200, int(max(ids, key=int)))
    assert_archived(tmp_path, ids)

    assert archiver.run(**NOW).messages == 0, "nothing comes twice"
    ids += publish(ORDERS, 30, start=100)
    assert archiver.run(**NOW).messages == 30
    assert_archived(tmp_path, ids)


def test_what_may_still_be_committed_is_left_for_later(spark: SparkSession, tmp_path: Path) -> None:
    publish(ORDERS, 10)
    assert Archiver(tmp_path, session=spark).run().messages == 0
    assert (reached(), read(tmp_path)) == (0, [])


@pytest.mark.parametrize("moment", ["before the files are in place", "before the manifest"])
def test_a_run_that_is_killed_leaves_nothing_that_counts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ids = publish(ORDERS, 100)
    target, name = (Archiver, "_row") if moment == "before the files are in place" else (archive.ArchiveMark, "objects")

    with monkeypatch.context() as patch, pytest.raises(BaseException):  # noqa: B017 - whatever ends it
        patch.setattr(target, name, property(lambda _: 1 / 0) if name == "objects" else _killed)
        Archiver(tmp_path, session=spark).run(**NOW)

    assert (ArchiveFile.objects.count(), reached()) == (0, 0)
    archiver = Archiver(tmp_path, session=spark)
    assert archiver.run(**NOW).messages == 100
    assert_archived(tmp_path, ids)
    assert archiver.sweep() == 0


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_small_files_of_a_day_become_one(spark: SparkSession, tmp_path: Path) -> None:
    archiver = Archiver(tmp_path, session=spark)
    ids = publish(ORDERS, 100) + publish(ORDERS, 90, start=100)
    archiver.run(**NOW)
    assert ArchiveFile.objects.count() > 1

    assert archiver.compact() == 1
    assert ArchiveFile.objects.count() == 1
    assert [path.name for path in tmp_path.rglob("*.parquet")] == [ArchiveFile.objects.get().path.rpartition("/")[2]]
    assert_archived(tmp_path, ids)
    assert archiver.compact() == 0


def test_no_message_is_let_go_before_it_is_archived(spark: SparkSession, tmp_path: Path, settings: Any) -> None:
    settings.ARCHIVING = True
    ids = publish(ORDERS, 50)
    assert not Delivery.objects.exists(), "owed to nobody"
    retention.settled_sweep()
    assert Message.objects.count() == 50

    Archiver(tmp_path, session=spark).run(**NOW)
    publish(ORDERS, 5, start=50)
    retention.settled_sweep()
    assert Message.objects.count() == 5
    assert_archived(tmp_path, ids)


def test_without_archiving_nothing_waits_for_it(redis_url: str) -> None:
    publish(ORDERS, 5)
    retention.settled_sweep()
    assert not Message.objects.exists()


def test_messages_of_a_deleted_topic_are_archived_too(spark: SparkSession, tmp_path: Path) -> None:
    publish(ORDERS, 3)
    services.topic_delete(name=ORDERS)
    assert Archiver(tmp_path, session=spark).run(**NOW).messages == 3
    assert {row["topic"] for row in read(tmp_path)} == {"_deleted-topic_"}


def test_a_second_archiver_is_refused(tmp_path: Path) -> None:
    with only_archiver(tmp_path), pytest.raises(FailedPrecondition, match="Another archiver"), only_archiver(tmp_path):
        pass


def test_tasks_get_the_url_of_this_database_and_its_password_is_not_shown() -> None:
    source = archive.source()
    assert source.database_url == database_url()
    assert source.database_url not in repr(source)


def test_large_messages_travel_in_small_batches() -> None:
    """A message may have 10 MB, and a batch is whole in memory, of Python and of Java."""
    rows = [(number, 1, b"x" * 3_000_000, "", "") for number in range(14)]
    assert [len(batch) for batch in archivereading._gathered(iter(rows))] == [6, 6, 2]
    small = [(number, 1, b"x", "", "") for number in range(12_000)]
    assert [len(batch) for batch in archivereading._gathered(iter(small))] == [5_000, 5_000, 2_000]
