"""The archive has every message once, other programs can read it, and no message is deleted before it is archived."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from deliveries.models import ArchivedMessage, ArchiveFile, ArchiveLeftover, Delivery, Message
from deliveries.pipeline.archiving import archive, files, locks, reading
from deliveries.pipeline.archiving.archive import GRACE, Archiver
from deliveries.pipeline.archiving.manifest import LISTING
from deliveries.pipeline.service import database_url
from deliveries.publish.service import publish_message
from deliveries.retention import sweep
from deliveries.rules.ids import first_id_at
from deliveries.rules.payload import NewMessage, publish_time_text
from deliveries.store import messagerows, statements
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic, delete_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark")]

ORDERS = "projects/shop/topics/orders"
RETURNS = "projects/depot/topics/returns"


@pytest.fixture(autouse=True)
def small(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranges of a few messages, so that a run has several steps."""
    monkeypatch.setattr(archive, "RANGE_ROWS", 40)
    monkeypatch.setattr(archive, "STEP_RANGES", 2)
    monkeypatch.setattr(sweep, "SETTLED_GRACE_MS", -1000)


def publish(topic: str, count: int, *, start: int = 0) -> list[str]:
    create_topic(name=topic, topic={}) if start == 0 else None
    messages = [
        NewMessage(f"{topic} {start + number}".encode(), {"n": str(number), "語": "値"} if number % 2 else {}, "k")
        for number in range(count)
    ]
    return publish_message(topic=get_topic(name=topic), messages=messages)


def read(root: Path) -> list[dict[str, Any]]:
    """Return the rows that DuckDB reads from the files in the manifest."""
    paths = [str(root / row.path) for row in ArchiveFile.objects.all()]
    if not paths:
        return []
    import duckdb

    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        result = duck.execute(
            "SELECT project, topic, message_id, publish_time, data, attributes, ordering_key, dt"
            " FROM read_parquet(?, hive_partitioning = true) ORDER BY message_id",
            [paths],
        )
        names = [column[0] for column in result.description or []]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def assert_archived(root: Path, ids: list[str]) -> None:
    """Assert that the archive has each message once, as it was published."""
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

    done = archiver.run()
    assert done.messages == 200
    assert_archived(tmp_path, ids)

    assert archiver.run().messages == 0, "no message is archived twice"
    ids += publish(ORDERS, 30, start=100)
    assert archiver.run().messages == 30
    assert_archived(tmp_path, ids)


def stored(topic: str, count: int, *, age_seconds: float) -> list[str]:
    """Insert messages whose ids come from a host with a clock `age_seconds` behind; return the ids."""
    first = first_id_at(int((time.time() - age_seconds) * 1000))
    ids = list(range(first, first + count))
    pk = get_topic(name=topic).pk
    statements.insert_messages(
        [(message_id, pk, "local", f"{topic} {number}".encode(), "", "") for number, message_id in enumerate(ids)]
    )
    return [str(message_id) for message_id in ids]


def test_messages_of_a_publisher_whose_clock_is_behind_are_archived_before_they_are_deleted(
    spark: SparkSession, tmp_path: Path, settings: Any
) -> None:
    """Given an archive with younger messages, when older ones are committed, then they stay until they are archived."""
    settings.ARCHIVING = True
    create_topic(name=ORDERS, topic={})
    archiver = Archiver(tmp_path, session=spark)
    younger = stored(ORDERS, 50, age_seconds=70)
    archiver.run()
    older = stored(ORDERS, 50, age_seconds=190)

    sweep.sweep_settled()
    assert sorted(map(str, Message.objects.values_list("pk", flat=True))) == older, "these are not archived yet"
    assert archiver.run().messages == 50
    sweep.sweep_settled()

    assert sorted(row["message_id"] for row in read(tmp_path)) == sorted([*older, *younger])
    assert not Message.objects.exists()
    assert not ArchivedMessage.objects.exists(), "the note that a message is archived is deleted with it"


def test_a_message_that_is_acknowledged_at_once_is_archived(spark: SparkSession, tmp_path: Path, settings: Any) -> None:
    settings.ARCHIVING = True
    create_topic(name=ORDERS, topic={})
    create_subscription(name="projects/shop/subscriptions/worker", subscription={"topic": ORDERS})
    [message_id] = publish_message(topic=get_topic(name=ORDERS), messages=[NewMessage(f"{ORDERS} 0".encode(), {}, "k")])
    Delivery.objects.all().delete()

    sweep.sweep_settled()
    assert Archiver(tmp_path, session=spark).run().messages == 1
    sweep.sweep_settled()

    assert_archived(tmp_path, [message_id])
    assert not Message.objects.exists()


def test_messages_of_a_killed_write_are_kept(spark: SparkSession, tmp_path: Path, settings: Any) -> None:
    """Given messages that a run has claimed and not written, when the sweep runs, then it deletes none of them."""
    settings.ARCHIVING = True
    ids = [int(message_id) for message_id in publish(ORDERS, 5)]
    write = ArchiveLeftover.objects.create(token="0123456789ab")
    messagerows.insert_archived(write_id=write.pk, message_ids=ids)

    sweep.sweep_settled()
    assert Message.objects.count() == 5
    assert Archiver(tmp_path, session=spark).run().messages == 5
    assert not ArchiveLeftover.objects.exists()


def test_the_first_run_after_an_upgrade_archives_nothing_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Given the archive of a release that did not note messages, then a run reads from the files what is archived."""
    ids = publish(ORDERS, 60)
    archiver = Archiver(tmp_path, session=spark)
    archiver.run()
    ArchivedMessage.objects.all().delete()

    assert archiver.run().messages == 0
    assert_archived(tmp_path, ids)


def test_files_that_are_not_its_own_are_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Given foreign files, and archive files that the restored database does not know, then a run deletes none."""
    archiver = Archiver(tmp_path, session=spark)
    ids = publish(ORDERS, 50)
    archiver.run()
    archive_files = set(tmp_path.rglob("*.parquet"))
    (tmp_path / "others").mkdir()
    foreign_files = {
        tmp_path / "others" / "table.parquet",
        next(iter(archive_files)).with_name("part-00000.snappy.parquet"),
    }
    for path in foreign_files:
        path.write_bytes(b"somebody else's")
    ArchiveFile.objects.all().delete()
    ArchivedMessage.objects.all().delete()

    archiver.run()

    assert archive_files | foreign_files <= set(tmp_path.rglob("*.parquet"))
    adopted = files.adopt(tmp_path)
    assert {tmp_path / path for path, _ in adopted.foreign} == foreign_files
    assert_archived(tmp_path, ids)


def test_a_database_older_than_the_archive_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Given a backup of the database from the middle of a compaction that has since ended and removed its old files,
    when an archiver runs on it, then it refuses to; after `adopt` it runs.
    """
    ids = publish(ORDERS, 90)
    archiver = Archiver(tmp_path, session=spark)
    archiver.run()
    before = list(ArchiveFile.objects.all())
    archiver.compact()
    assert Archiver(tmp_path, session=spark, clock=later).sweep() == len(before)
    [compacted] = ArchiveFile.objects.all()
    ArchiveFile.objects.all().delete()
    ArchiveFile.objects.bulk_create(before)
    ArchiveLeftover.objects.create(token=compacted.path.split("-")[-2])

    with pytest.raises(FailedPrecondition, match="older backup.*Nothing was deleted"):
        archiver.run()
    assert (tmp_path / compacted.path).exists()
    assert files.verify(tmp_path).missing == sorted(row.path for row in before)

    adopted = files.adopt(tmp_path)
    assert (adopted.added, sorted(adopted.dropped)) == ([compacted.path], sorted(row.path for row in before))
    assert archiver.run().messages == 0
    assert_archived(tmp_path, ids)


@pytest.mark.parametrize("moment", ["before the files are in the manifest", "before its transaction ends"])
def test_a_killed_run_leaves_no_file_in_the_manifest(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ids = publish(ORDERS, 100)
    manifest, leftover = (ArchiveFile.objects, "bulk_create"), (ArchiveLeftover, "delete")
    target, name = manifest if moment == "before the files are in the manifest" else leftover

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(target, name, _killed)
        Archiver(tmp_path, session=spark).run()

    assert not ArchiveFile.objects.exists()
    assert list(tmp_path.rglob("*.parquet")), "the killed run left files behind"
    archiver = Archiver(tmp_path, session=spark)
    assert archiver.run().messages == 100
    assert_archived(tmp_path, ids)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")} == set(
        ArchiveFile.objects.values_list("path", flat=True)
    )
    assert archiver.sweep() == 0


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def later() -> datetime:
    """Return a time at which files that are replaced now may be deleted."""
    return utcnow() + GRACE


def counted(listed: list[str], root: Path) -> int:
    """Count messages as docs/pipeline.md says, in files that were listed before."""
    import duckdb

    with duckdb.connect() as engine:
        query = "SELECT count(*) FROM read_parquet($paths, hive_partitioning = true)"
        [(count,)] = engine.sql(query, params={"paths": [str(root / path) for path in listed]}).fetchall()
    return int(count)


def listed(root: Path) -> list[str]:
    import duckdb

    with duckdb.connect() as engine:
        query = "SELECT path FROM read_csv($listing, header = true, columns = {'path': 'VARCHAR'}) ORDER BY path"
        return [path for (path,) in engine.sql(query, params={"listing": str(root / LISTING)}).fetchall()]


def test_the_small_files_of_a_day_are_compacted_while_others_read_them(spark: SparkSession, tmp_path: Path) -> None:
    """Given readers that know the files of a day, when the day is compacted, then they and later readers see each
    message once. The old files are deleted after a grace period, and only while no replay reads the archive.
    """
    archiver = Archiver(tmp_path, session=spark)
    ids = publish(ORDERS, 100) + publish(ORDERS, 90, start=100)
    archiver.run()
    before = listed(tmp_path)
    assert len(before) == ArchiveFile.objects.count() > 1
    assert counted(before, tmp_path) == 190

    assert archiver.compact() == 1
    after = listed(tmp_path)
    assert after == [ArchiveFile.objects.get().path]
    assert (counted(before, tmp_path), counted(after, tmp_path)) == (190, 190)
    assert files.verify(tmp_path).unknown == []
    assert_archived(tmp_path, ids)
    assert archiver.compact() == 0

    assert Archiver(tmp_path, session=spark, clock=lambda: later() - timedelta(minutes=1)).sweep() == 0
    with locks.reading(tmp_path):
        assert Archiver(tmp_path, session=spark, clock=later).sweep() == 0
    assert Archiver(tmp_path, session=spark, clock=later).sweep() == len(before)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")] == after


def test_files_whose_messages_are_all_too_old_leave_the_archive(
    spark: SparkSession, tmp_path: Path, settings: Any
) -> None:
    """Given PUSHHUB_ARCHIVE_DAYS, when a run ends, then the manifest lacks the files of older messages. They are
    deleted after the grace period, and no file with a younger message is.
    """
    settings.ARCHIVE_DAYS = 10
    create_topic(name=ORDERS, topic={})
    day = timedelta(days=1).total_seconds()
    stored(ORDERS, 7, age_seconds=11 * day)
    Archiver(tmp_path, session=spark, clock=lambda: utcnow() - timedelta(days=5)).run()
    old = listed(tmp_path)
    young = stored(ORDERS, 5, age_seconds=9 * day)

    Archiver(tmp_path, session=spark).run()

    assert old
    assert [row["message_id"] for row in read(tmp_path)] == young
    assert not set(old) & set(listed(tmp_path))
    assert counted(old, tmp_path) == 7, "a reader that knows the file can finish"
    assert Archiver(tmp_path, session=spark, clock=later).sweep() == len(old)
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")] == listed(tmp_path)
    assert Archiver(tmp_path, session=spark).run().messages == 0, "a message that is stored still is not archived again"


def test_no_message_is_deleted_before_it_is_archived(spark: SparkSession, tmp_path: Path, settings: Any) -> None:
    settings.ARCHIVING = True
    ids = publish(ORDERS, 50)
    assert not Delivery.objects.exists(), "no subscription is owed a message"
    sweep.sweep_settled()
    assert Message.objects.count() == 50

    Archiver(tmp_path, session=spark).run()
    publish(ORDERS, 5, start=50)
    sweep.sweep_settled()
    assert Message.objects.count() == 5
    assert_archived(tmp_path, ids)


def test_without_archiving_settled_messages_are_deleted(redis_url: str) -> None:
    publish(ORDERS, 5)
    sweep.sweep_settled()
    assert not Message.objects.exists()


def test_messages_of_a_deleted_topic_are_archived_too(spark: SparkSession, tmp_path: Path) -> None:
    publish(ORDERS, 3)
    delete_topic(name=ORDERS)
    assert Archiver(tmp_path, session=spark).run().messages == 3
    assert {row["topic"] for row in read(tmp_path)} == {"_deleted-topic_"}


def test_tasks_get_the_url_of_this_database_and_its_password_is_not_shown() -> None:
    source = archive.source(write_id=1)
    assert source.database_url == database_url()
    assert source.database_url not in repr(source)


def test_large_messages_travel_in_small_batches() -> None:
    """A message may have 10 MB, and Python and Java each hold a whole batch in memory."""
    rows = [(number, 1, b"x" * 3_000_000, "", "") for number in range(14)]
    source = archive.source(write_id=1)
    assert [batch.num_rows for batch in reading._batches(source, rows)] == [5, 5, 4]
    attributes = json.dumps({f"{number}": "x" * 1000 for number in range(100)})
    rows = [(number, 1, b"", attributes, "") for number in range(400)]
    assert max(batch.nbytes for batch in reading._batches(source, rows)) < 2 * reading.BATCH_BYTES
    small = [(number, 1, b"x", "", "") for number in range(12_000)]
    assert [batch.num_rows for batch in reading._batches(source, small)] == [5_000, 5_000, 2_000]


def test_a_scheduled_run_prints_only_what_it_wrote(tmp_path: Path, settings: Any) -> None:
    settings.ARCHIVE, settings.ARCHIVING, settings.SPARK_MASTER = str(tmp_path / "archive"), True, "local[2]"
    command = ["pipeline", "archive", "--compact"]
    publish(ORDERS, 3)
    first_output, second_output = StringIO(), StringIO()

    call_command(*command, verbosity=0, stdout=first_output, stderr=first_output)
    call_command(*command, verbosity=0, stdout=second_output, stderr=second_output)

    assert first_output.getvalue() == f"archived 3 messages in 1 files under {settings.ARCHIVE}\n"
    assert second_output.getvalue() == ""
    assert sum(row.rows for row in ArchiveFile.objects.all()) == 3


@pytest.mark.parametrize("moment", ["_write_begin", "_written"])
def test_a_run_that_was_frozen_while_another_took_over_changes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    ids = publish(ORDERS, 50)
    frozen = Archiver(tmp_path, session=spark)
    act = getattr(frozen, moment)

    def act_and_freeze(*args: Any, **kwargs: Any) -> Any:
        result = act(*args, **kwargs)
        assert Archiver(tmp_path, session=spark).run().messages == 50
        return result

    # Given a run that is frozen before it claims messages, or before its files are in the manifest, until another one
    # has archived them
    monkeypatch.setattr(frozen, moment, act_and_freeze)
    # When it goes on, then it stops, and the archive has each message once
    with pytest.raises(FailedPrecondition, match="Another archiver has taken over"):
        frozen._step(0)
    assert_archived(tmp_path, ids)
    assert ArchivedMessage.objects.count() == 50
    assert not ArchiveLeftover.objects.exists()
