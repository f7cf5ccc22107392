"""The data source's reader without Java: what it reads of an archive, and what it skips."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import util
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")
from pyspark.sql import datasource as spark
from pyspark.sql import streaming
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from deliveries.pipeline.archiving import scanning
from deliveries.pipeline.archiving.columns import arrow_schema
from deliveries.pipeline.archiving.manifest import ManifestFile, read_manifest, write_manifest
from deliveries.pipeline.archiving.writing import STORED
from deliveries.pipeline.datasource import reader, triggers
from deliveries.pipeline.datasource.reader import ArchiveReader
from deliveries.pipeline.datasource.source import PushHubDataSource
from deliveries.pipeline.datasource.streaming import ArchiveStreamReader
from deliveries.rules.ids import first_id_at
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import Store

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
ORDERS = "projects/shop/topics/orders"
RETURNS = "projects/shop/topics/returns"
TYPES = {"publish_time": TimestampType(), "step": LongType()}


def message_id(minute: int) -> int:
    return first_id_at(int((NOON + timedelta(minutes=minute)).timestamp() * 1000))


def archive_file(root: Path, minutes: Sequence[int], *, project: str = "shop", step: int = 5) -> ManifestFile:
    """Write a file with a message of each topic per minute, in row groups of four; older releases wrote step 0."""
    rows = [
        {
            "topic": topic.replace("shop", project),
            "message_id": str(message_id(minute) + number),
            "publish_time": NOON + timedelta(minutes=minute),
            "data": f"{topic[-1]} {minute}".encode(),
            "attributes": [("minute", str(minute))],
            "ordering_key": "",
            "step": step,
        }
        for number, topic in enumerate((ORDERS, RETURNS))
        for minute in minutes
    ]
    name = f"project={project}/dt=2026-11-21/{minutes[0]}-{minutes[-1]}-{step}.parquet"
    columns = STORED if step else tuple(column for column in STORED if column != "step")
    table = pa.Table.from_pylist(rows, schema=arrow_schema(STORED)).select(list(columns))
    with Store(root).write(name) as file:
        pq.write_table(table, file, row_group_size=4)
    size = (root / name).stat().st_size
    first, last = message_id(minutes[0]), message_id(minutes[-1]) + 1
    return ManifestFile(name, first, last, step, step, len(rows), size)


def archive(root: Path, *files: ManifestFile) -> None:
    write_manifest(Store(root), files)


def reader_of(root: Path, *columns: str, **options: str) -> ArchiveReader:
    schema = StructType([StructField(name, TYPES.get(name, StringType())) for name in columns or ("message_id",)])
    reader = PushHubDataSource({"path": str(root), **options}).reader(schema)
    assert isinstance(reader, ArchiveReader)
    return reader


def read(source: Any, parts: Sequence[Any] | None = None) -> list[dict[str, Any]]:
    parts = source.partitions() if parts is None else parts
    return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]


def test_an_archive_without_files_has_no_messages(tmp_path: Path) -> None:
    assert reader_of(tmp_path).partitions() == []
    assert read(reader_of(tmp_path), [spark.InputPartition(None)]) == []


def test_a_schema_chooses_columns_and_their_order(tmp_path: Path) -> None:
    archive(tmp_path, archive_file(tmp_path, [0], step=0))
    [first, _] = read(reader_of(tmp_path, "step", "project", "topic"))
    assert list(first.items()) == [("step", 0), ("project", "shop"), ("topic", ORDERS)]


def test_the_topic_and_the_time_choose_files_and_messages(tmp_path: Path) -> None:
    early, late = archive_file(tmp_path, range(10)), archive_file(tmp_path, range(60, 70))
    archive(tmp_path, early, late, archive_file(tmp_path, range(10), project="depot"))
    source = reader_of(
        tmp_path,
        "message_id",
        topic=ORDERS,
        **{"from": "2026-11-21T12:03:00Z", "to": "2026-11-21T13:01:00+00:00"},
    )
    assert {part.path for part in source.partitions()} == {early.path, late.path}
    assert [row["message_id"] for row in read(source)] == [str(message_id(minute)) for minute in [*range(3, 10), 60]]
    just_begun = reader_of(tmp_path, topic=ORDERS, to="2026-11-21T12:00:00.0001Z")
    assert [row["message_id"] for row in read(just_begun)] == [str(message_id(0))]
    source = reader_of(tmp_path, **{"from": "2026-11-21T12:30:00Z"})
    assert {part.path for part in source.partitions()} == {late.path}


@pytest.mark.parametrize(
    ("pushed", "minutes"),
    [
        (spark.EqualTo(("publish_time",), NOON + timedelta(minutes=3)), [3]),
        (spark.GreaterThan(("publish_time",), NOON + timedelta(minutes=7)), [8, 9]),
        (spark.GreaterThanOrEqual(("publish_time",), NOON + timedelta(minutes=8)), [8, 9]),
        (spark.LessThan(("publish_time",), NOON + timedelta(minutes=1)), [0]),
        (spark.LessThanOrEqual(("publish_time",), NOON), [0]),
        (spark.In(("message_id",), (str(message_id(2)), str(message_id(4)))), [2, 4]),
        (spark.StringStartsWith(("message_id",), str(message_id(6))), [6]),
        (spark.Not(spark.EqualTo(("topic",), RETURNS)), [*range(10)]),
        (spark.IsNotNull(("topic",)), [*range(10)]),
        (spark.EqualTo(("data",), b"s 1"), [*range(10)]),
        (spark.StringContains(("topic",), "nothing"), [*range(10)]),
        (spark.IsNull(("topic",)), [*range(10)]),
        (spark.Not(spark.GreaterThan(("publish_time",), NOON)), [*range(10)]),
    ],
)
def test_sparks_filters_are_applied_if_arrow_supports_them(tmp_path: Path, pushed: Any, minutes: list[int]) -> None:
    """Spark applies all of them again, so an unsupported filter keeps every message."""
    archive(tmp_path, archive_file(tmp_path, range(10)))
    source = reader_of(tmp_path, topic=ORDERS)
    assert list(source.pushFilters([pushed])) == [pushed]
    assert [row["message_id"] for row in read(source)] == [str(message_id(minute)) for minute in minutes]


def test_row_groups_that_a_filter_excludes_are_not_read(tmp_path: Path) -> None:
    """Given a file whose second topic's pages are damaged, then the first topic's messages are read."""
    file = archive_file(tmp_path, range(8))
    archive(tmp_path, file)
    footer = pq.read_metadata(tmp_path / file.path)
    pages = footer.row_group(2).column(0)
    content = bytearray((tmp_path / file.path).read_bytes())
    start = pages.dictionary_page_offset or pages.data_page_offset
    end = footer.row_group(3).column(0).data_page_offset
    content[start:end] = b"\0" * (end - start)
    (tmp_path / file.path).write_bytes(content)

    source = reader_of(tmp_path)
    source.pushFilters([spark.EqualTo(("topic",), ORDERS)])
    assert len(read(source)) == 8
    with pytest.raises(OSError):
        read(reader_of(tmp_path))


def test_large_files_are_divided_between_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "PART_ROWS", 5)
    archive(tmp_path, archive_file(tmp_path, range(10)))
    source = reader_of(tmp_path)
    counts = [len(read(source, [part])) for part in source.partitions()]
    assert (len(counts), sum(counts)) == (4, 20)
    assert max(counts) == 8, "row groups are not divided"


def test_batches_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "BATCH_BYTES", 100)
    archive(tmp_path, archive_file(tmp_path, range(10)))
    source = reader_of(tmp_path)
    [part] = source.partitions()
    assert max(batch.nbytes for batch in source.read(part)) <= 100


def stream(root: Path, **options: str) -> ArchiveStreamReader:
    source = PushHubDataSource({"path": str(root), **options})
    reader = source.streamReader(StructType([StructField("message_id", StringType())]))
    assert isinstance(reader, ArchiveStreamReader)
    return reader


def ids_between(source: ArchiveStreamReader, start: int, end: int) -> list[str]:
    rows = read(source, source.partitions({"step": start}, {"step": end}))
    return sorted(row["message_id"] for row in rows)


def test_offsets_are_steps_and_a_range_has_the_same_messages_after_a_compaction(tmp_path: Path) -> None:
    """Given messages of an older release and of two steps, when all files become one, then each range is as before."""
    old, first, second = (archive_file(tmp_path, range(step * 10, step * 10 + 3), step=step) for step in (0, 1, 2))
    archive(tmp_path, old, first, second)
    source = stream(tmp_path)
    begin = source.initialOffset()["step"]
    assert source.latestOffset({"step": begin}, ReadAllAvailable()) == {"step": 2}
    assert source.latestOffset() == {"step": 2}, "as Spark 4.0 asks"
    ranges = [(begin, 0), (begin, 1), (0, 1), (0, 2), (1, 2), (2, 2)]
    before = {span: ids_between(source, *span) for span in ranges}
    assert [len(before[span]) for span in ranges] == [6, 12, 6, 12, 6, 0]

    tables = [scanning.scan(Store(tmp_path), file.path, columns=STORED) for file in (old, first, second)]
    table = pa.Table.from_batches([batch for batches in tables for batch in batches])
    name = "project=shop/dt=2026-11-21/0-2-9.parquet"
    pq.write_table(table, tmp_path / name)
    size = (tmp_path / name).stat().st_size
    archive(tmp_path, ManifestFile(name, old.first_id, second.last_id, 0, 2, 18, size))

    assert {span: ids_between(source, *span) for span in ranges} == before


def test_a_limit_of_rows_ends_a_batch_between_two_steps(tmp_path: Path) -> None:
    archive(tmp_path, *(archive_file(tmp_path, range(step * 10, step * 10 + 3), step=step) for step in (1, 2, 3)))
    source = stream(tmp_path, maxRowsPerBatch="12")
    assert source.getDefaultReadLimit() == ReadMaxRows(12)
    assert source.latestOffset({"step": -1}, ReadMaxRows(12)) == {"step": 2}
    assert source.latestOffset({"step": 2}, ReadMaxRows(12)) == {"step": 3}
    assert source.latestOffset({"step": 0}, ReadMaxRows(1)) == {"step": 1}, "a step is whole"
    assert source.latestOffset({"step": 3}, ReadMaxRows(12)) == {"step": 3}


def test_a_stream_is_read_if_spark_has_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a Spark before 4.2, then the class of the reader can be made all the same."""
    monkeypatch.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
    monkeypatch.delattr(streaming, "datasource")
    spec = util.find_spec(triggers.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.limits is None
    assert module.SupportsTriggerAvailableNow()


def test_available_now_ends_with_the_messages_that_existed_at_its_start(tmp_path: Path) -> None:
    first = archive_file(tmp_path, range(3), step=1)
    archive(tmp_path, first)
    source = stream(tmp_path)
    source.prepareForTriggerAvailableNow()
    archive(tmp_path, first, archive_file(tmp_path, range(10, 13), step=2))
    assert source.latestOffset({"step": -1}, ReadAllAvailable()) == {"step": 1}
    assert source.latestOffset({"step": 1}, ReadAllAvailable()) == {"step": 1}
    compacted = replace(archive_file(tmp_path, range(20, 23), step=9), first_step=1, last_step=2)
    archive(tmp_path, compacted)
    assert source.latestOffset({"step": -1}, ReadAllAvailable()) == {"step": 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topik": "x"}, "There is no option 'topik'"),
        ({"path": ""}, "Give the option subscription, or archive"),
        ({"topic": "orders"}, r"Invalid resource name given \(name=orders\)"),
        ({"from": "yesterday"}, "from"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch is a number above 0"),
        ({"path": "s3://key:secret-key@bucket/archive"}, "has credentials or settings in it"),
    ],
)
def test_options_that_cannot_be_used_are_named(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        stream(tmp_path, **options).latestOffset()
    assert "secret-key" not in str(refused.value)


def test_a_schema_cannot_change_types_or_add_columns(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="The column publish_time is timestamp, not bigint"):
        PushHubDataSource({"path": "x"}).reader(StructType([StructField("publish_time", LongType())]))
    with pytest.raises(InvalidArgument, match="has no column 'body'"):
        reader_of(tmp_path, "body")
    assert PushHubDataSource({"columns": "step, topic"}).schema() == "step bigint, topic string"
    with pytest.raises(InvalidArgument, match="has no column 'body'"):
        PushHubDataSource({"columns": "body"}).schema()


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    files = [ManifestFile("project=example.com%3Ashop/dt=2026-11-21/1-2-a-0.parquet", 1, 2, 3, 4, 5, 6)]
    write_manifest(Store(tmp_path), files)
    assert read_manifest(Store(tmp_path)) == files
    assert files[0].project == "example.com:shop"
    assert (tmp_path / "files.csv").read_text().split() == ["path", files[0].path]
