"""Rows of Parquet files, without Spark: they are read a few at a time, in order, with the requested columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deliveries.pipeline.jobs import ingest, parquetrows
from deliveries.pipeline.jobs.parquetrows import FILE, PART, Span, folders_of, read_spans, spans_of

SCHEMA = pa.schema(
    [(PART, pa.int32()), (FILE, pa.string()), ("a", pa.int64()), ("b", pa.string()), ("day", pa.string())]
)


def read(path: Path, *spans: Span, schema: pa.Schema = SCHEMA, base: str = "") -> list[pa.RecordBatch]:
    rows = [
        {"part": number, "path": str(path), "first": span.first, "last": span.last} for number, span in enumerate(spans)
    ]
    return list(read_spans([pa.RecordBatch.from_pylist(rows)], schema=schema, base=base))


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
    return rows


def test_rows_come_with_their_part_their_file_and_the_columns_of_its_folder(tmp_path: Path) -> None:
    """Given a file in a Hive partition folder that lacks a column, has one too many, and has one of another type."""
    path = tmp_path / "day=2026-11-21" / "x.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"a": pa.array([1, 2, 3], pa.int32()), "c": [0.5] * 3}), path, row_group_size=2)

    rows = rows_of(read(path, Span(0, 1), Span(1, 9), base=str(tmp_path)))

    shared = {FILE: "x.parquet", "b": None, "day": "2026-11-21"}
    assert rows == [{PART: part, "a": a, **shared} for part, a in ((0, 1), (0, 2), (1, 3))]


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given one row group of 64 MiB in pages of 1 MiB, then a batch has about 1 MiB at most, and reading needs little
    more memory than what is decoded at a time.
    """
    monkeypatch.setattr(parquetrows, "BATCH_BYTES", 2**20)
    path = tmp_path / "x.parquet"
    values = [number.to_bytes(4, "big") * 2**14 for number in range(1024)]
    pages = {"write_batch_size": 16, "use_dictionary": False}
    pq.write_table(pa.table({"a": values}), path, row_group_size=1024, compression="none", **pages)
    del values
    schema = pa.schema([(PART, pa.int32()), (FILE, pa.string()), ("a", pa.binary())])
    before, most, count = pa.total_allocated_bytes(), 0, 0
    row = pa.RecordBatch.from_pylist([{"part": 0, "path": str(path), "first": 0, "last": 1}])

    for batch in read_spans([row], schema=schema, base=""):
        assert batch.column("a")[0].as_py()[:4] == count.to_bytes(4, "big")
        assert batch.num_rows <= 2**20 // 2**16 + 1
        most = max(most, pa.total_allocated_bytes() - before)
        count += batch.num_rows

    assert count == 1024
    assert most < 24 * 2**20, "64 rows of 64 KiB are decoded at a time"


def test_large_files_are_divided_at_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetrows, "PART_BYTES", 300)
    large, empty = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"a": list(range(100))}), large, row_group_size=20)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), empty)
    spans = spans_of(large)
    assert len(spans) > 1
    assert [group for span in spans for group in range(span.first, span.last)] == list(range(5))
    assert [row["a"] for row in rows_of(read(large, *spans))] == list(range(100))
    assert rows_of(read(large, *spans)) == rows_of(read(large, *spans))
    assert read(empty, *spans_of(empty)) == []
    parts = ingest.parts_of([large, empty], form="parquet", unordered=True)
    assert [(part.number, part.path) for part in parts] == [*enumerate([large] * len(spans)), (len(spans), empty)]


def test_columns_have_types_that_spark_has(tmp_path: Path) -> None:
    """Given types that Spark lacks, and an instant as Spark writes it by default, then Spark's types replace them."""
    path = tmp_path / "x.parquet"
    columns = {
        "small": (pa.uint32(), pa.int64()),
        "large": (pa.uint64(), pa.decimal128(20)),
        "text": (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        "list": (pa.list_(pa.uint8()), pa.list_(pa.int16())),
        "nothing": (pa.null(), pa.int32()),
        "instant": (pa.timestamp("ns"), pa.timestamp("us", "UTC")),
    }
    table = pa.schema([(name, kind) for name, (kind, _) in columns.items()]).empty_table()
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    assert parquetrows.schema_of(path) == pa.schema([(name, kind) for name, (_, kind) in columns.items()])


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "02", None], "bigint"),
        (["1", "-2.5"], "double"),
        (["1", "2026-11-21"], "string"),
        ([None], "string"),
        (["9" * 30], "double"),
    ],
)
def test_numbers_in_folder_names_make_a_column_of_numbers(values: list[str | None], kind: str) -> None:
    assert parquetrows.folder_kind(values) == kind


@pytest.mark.parametrize(
    ("path", "columns"),
    [
        ("x.parquet", {}),
        ("year=2026/day=3/x.parquet", {"year": "2026", "day": "3"}),
        ("old/kind=a%2Fb/x.parquet", {"kind": "a/b"}),
        ("kind=__HIVE_DEFAULT_PARTITION__/x=1.parquet", {"kind": None}),
    ],
)
def test_folder_names_become_columns(tmp_path: Path, path: str, columns: dict[str, str | None]) -> None:
    assert folders_of(tmp_path / path, str(tmp_path)) == columns
    assert folders_of(tmp_path / path, "") == {}
