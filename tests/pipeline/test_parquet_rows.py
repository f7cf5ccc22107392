"""Rows of Parquet and Avro files, without Spark: they are read a few at a time, in order, as messages."""

from __future__ import annotations

import io
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deliveries.pipeline.jobs import ingest, parquetrows, sources, spans
from deliveries.pipeline.jobs.avrorows import avro_spans, read_avro
from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.parquetrows import parquet_head, read_parquet
from deliveries.pipeline.jobs.reading import Reading
from deliveries.pipeline.jobs.rows import USUAL
from deliveries.pipeline.jobs.sources import folder_kinds, folder_values, folders_of
from deliveries.pipeline.jobs.spans import WHOLE, Span, divide, line_spans
from pushhub.common import stores
from pushhub.common.errors import InvalidArgument

WHOLE_ROW = Columns()
#: 2026-11-21T04:57:00.123456789Z
INSTANT = 1_795_237_020_123_456_789
TIME = datetime(2026, 11, 21, 4, 57, 0, 123456)


def datas(path: Path, *parts: Span, columns: Columns = WHOLE_ROW, folders: Any = None) -> list[bytes]:
    return [row.data for span in parts or [WHOLE] for row in read_parquet(path, span, columns, folders or {})]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([TIME.replace(microsecond=0)], pa.timestamp("s")), b'"2026-11-21T04:57:00"'),
        (pa.array([INSTANT // 10**6], pa.timestamp("ms", "UTC")), b'"2026-11-21T04:57:00.123000Z"'),
        (pa.array([TIME], pa.timestamp("us")), b'"2026-11-21T04:57:00.123456"'),
        (pa.array([INSTANT], pa.timestamp("ns")), b'"2026-11-21T04:57:00.123456789"'),
        (pa.array([INSTANT], pa.timestamp("ns", "Europe/Berlin")), b'"2026-11-21T04:57:00.123456789Z"'),
        (pa.array([INSTANT // 1000], pa.timestamp("us", "-05:30")), b'"2026-11-21T04:57:00.123456Z"'),
        (pa.array([date(2026, 11, 21)], pa.date64()), b'"2026-11-21"'),
        (pa.array([time(4, 57, 0, 5)], pa.time64("us")), b'"04:57:00.000005"'),
        (pa.array([90], pa.duration("s")), b'"90.0s"'),
        (pa.array([Decimal("-12.30")], pa.decimal128(38, 2)), b"-12.30"),
        (pa.array([Decimal("12345678901234567890123456789012345678901.5")], pa.decimal256(60, 1)),
         b"12345678901234567890123456789012345678901.5"),
        (pa.array([2**64 - 1], pa.uint64()), b"18446744073709551615"),
        (pa.array([-(2**63)], pa.int64()), b"-9223372036854775808"),
        (pa.array([1.5], pa.float16()), b"1.5"),
        (pa.array([float("nan")], pa.float64()), b'"NaN"'),
        (pa.array([float("-inf")], pa.float32()), b'"-Infinity"'),
        (pa.array([True]), b"true"),
        (pa.array([b"\xff\0"], pa.binary(2)), b'"/wA="'),
        (pa.array(["a"]).dictionary_encode(), b'"a"'),
        (pa.array([[1, None]], pa.list_(pa.uint8())), b"[1,null]"),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), b"[1,2]"),
        (pa.array([[[("a", TIME)]]], pa.list_(pa.map_(pa.string(), pa.timestamp("ns", "UTC")))),
         b'[{"a":"2026-11-21T04:57:00.123456Z"}]'),
        (pa.array([[(7, {"b": Decimal("1.0"), "c": None})]],
                  pa.map_(pa.int32(), pa.struct([("b", pa.decimal128(9, 1)), ("c", pa.string())]))),
         b'{"7":{"b":1.0}}'),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)  # fmt: skip
def test_a_value_of_any_type_is_shown_in_full(tmp_path: Path, values: pa.Array, shown: bytes) -> None:
    """Given a column of each type, then its value is in the row's JSON, and alone as data, with all of its digits."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"v": values}), path)
    assert datas(path) == [b'{"v":' + shown + b"}"]
    alone = b"\xff\0" if shown == b'"/wA="' else shown.strip(b'"')
    assert datas(path, columns=Columns("v")) == [alone]


def test_instants_as_spark_writes_them_are_in_utc(tmp_path: Path) -> None:
    """Given INT96, also of a year that no nanosecond reaches and within other values, then the time is in UTC."""
    path = tmp_path / "x.parquet"
    instant = pa.timestamp("us")
    columns = {
        "v": pa.array([TIME.replace(year=3026)], instant),
        "s": pa.array([{"a": 1, "at": TIME}], pa.struct([("a", pa.int64()), ("at", instant)])),
        "l": pa.array([[[TIME, None]]], pa.list_(pa.large_list(instant))),
        "m": pa.array([[("k", [TIME])]], pa.map_(pa.string(), pa.list_(instant, 1))),
        "d": pa.array(["x"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), path, use_deprecated_int96_timestamps=True)
    shown = "2026-11-21T04:57:00.123456Z"
    assert orjson.loads(datas(path)[0]) == {
        **{"v": "3026-11-21T04:57:00.123456Z", "s": {"a": 1, "at": shown}, "l": [[shown, None]]},
        **{"m": {"k": [shown]}, "d": "x"},
    }
    assert datas(path, columns=Columns("d", ("s",))) == [b"x"]


def test_a_map_becomes_an_attribute_for_each_entry(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    attributes = pa.array([[("kind", "order"), ("none", None)], None], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"data": [b"\xff", b"b"], "attributes": attributes, "n": [1, 2], "other": [0, 0]}), path)
    assert list(read_parquet(path, WHOLE, Columns("data", ("attributes", "n"), "n"), {})) == [
        Row(None, b"\xff", {"kind": "order", "n": "1"}, "1"),
        Row(None, b"b", {"n": "2"}, "2"),
    ]


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"\xff", "is not UTF-8"), ({"a": [[]] * 2}, ""), (orjson.loads("[" * 300 + "]" * 300), "cannot be written")],
)
def test_a_value_that_cannot_be_text_is_refused(value: Any, reason: str) -> None:
    if not reason:
        assert row_of(1, {"v": value}, Columns("", ("v",))).attributes == {"a": "[[],[]]"}
        return
    with pytest.raises(RowError, match=reason):
        row_of(1, {"v": value}, Columns("", ("v",)))


def test_rows_come_with_the_columns_of_the_folder(tmp_path: Path) -> None:
    """Given a file in a Hive partition folder with a column of the folder's name, then the folder's value counts."""
    path = tmp_path / "day=21" / "x.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"a": [1, 2, 3], "day": [0] * 3}), path, row_group_size=2)
    folders = folder_values(path, str(tmp_path), folder_kinds([path], str(tmp_path)))
    assert datas(path, Span(0, 1), Span(1, 9), folders=folders) == [b'{"a":%d,"day":21}' % n for n in (1, 2, 3)]
    assert datas(path, columns=Columns("day"), folders=folders) == [b"21"] * 3
    assert datas(path, folders={"day": 10**30})[0] == b'{"a":1,"day":1000000000000000000000000000000}'


def test_a_row_group_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given one row group of 64 MiB in pages of 1 MiB, then reading needs little more memory than what is decoded at a
    time.
    """
    monkeypatch.setattr(parquetrows, "BATCH_BYTES", 2**20)
    path = tmp_path / "x.parquet"
    values = [number.to_bytes(4, "big") * 2**14 for number in range(1024)]
    pages = {"write_batch_size": 16, "use_dictionary": False}
    pq.write_table(pa.table({"a": values}), path, row_group_size=1024, compression="none", **pages)
    del values
    before, most = pa.total_allocated_bytes(), 0

    for count, row in enumerate(read_parquet(path, WHOLE, Columns("a"), {})):
        assert row.data[:4] == count.to_bytes(4, "big")
        most = max(most, pa.total_allocated_bytes() - before)

    assert count == 1023
    assert most < 24 * 2**20, "64 rows of 64 KiB are decoded at a time"


def test_large_files_are_divided_at_their_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "PART_BYTES", 300)
    large, empty = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"a": list(range(100))}), large, row_group_size=20)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), empty)
    divided = parquet_head(large).spans
    assert len(divided) > 1
    assert [group for span in divided for group in range(span.first, span.last)] == list(range(5))
    assert datas(large, *divided) == [b'{"a":%d}' % number for number in range(100)]
    assert datas(empty, *parquet_head(empty).spans) == []
    parts = ingest.parts_of([large, empty], [divided, parquet_head(empty).spans], in_order=False)
    assert [(part.number, part.path) for part in parts] == [*enumerate([large] * len(divided)), (len(divided), empty)]
    assert [part.span for part in ingest.parts_of([large, empty], [divided, [WHOLE]], in_order=True)] == [WHOLE] * 2


def test_the_footer_of_a_file_is_read_once_before_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given Parquet files, then their columns, spans and numbers of rows come from one look at each."""
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for path in paths:
        pq.write_table(pa.table({"a": [1, 2]}), path)
    opened: list[Path] = []

    def open_parquet(path: Path, **options: Any) -> Any:
        opened.append(path)
        return stores.open_parquet(path, **options)

    monkeypatch.setattr(parquetrows, "open_parquet", open_parquet)
    heads = sources.heads_of(paths, form="parquet", dialect=USUAL)
    sources.check_columns(paths, heads, form="parquet", columns=Columns("a"), base="")
    divided = [sources.spans_of(path, form="parquet") or head.spans for path, head in zip(paths, heads, strict=True)]
    parts = ingest.parts_of(paths, divided, in_order=False)
    assert ingest.count_rows(None, parts, heads, Reading("parquet", WHOLE_ROW)) == 6  # type: ignore[arg-type]
    assert opened == paths


@pytest.mark.parametrize(
    ("sizes", "ends"), [([], [0]), ([1], [1]), ([9, 9, 9], [2, 3]), ([99, 1, 99], [1, 3]), ([10, 10], [1, 2])]
)
def test_pieces_make_spans(monkeypatch: pytest.MonkeyPatch, sizes: list[int], ends: list[int]) -> None:
    monkeypatch.setattr(spans, "PART_BYTES", 10)
    assert divide(sizes) == [Span(first, last) for first, last in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("chunk", [1, 4, 30])
def test_json_lines_are_divided_at_the_ends_of_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Given lines of several lengths, a malformed one and no newline at the end, then the spans together have the rows
    of the file, with their lines.
    """
    monkeypatch.setattr(spans, "PART_BYTES", 20)
    monkeypatch.setattr(spans, "CHUNK_BYTES", chunk)
    path = tmp_path / "a.json"
    lines = [b'{"a":%d,"b":"%b"}' % (n, b"x" * (n * 7 % 31)) for n in range(30)]
    path.write_bytes(b"\xef\xbb\xbf" + b"\n".join([*lines[:9], b"nonsense", *lines[9:]]))
    whole = list(sources_rows(path, WHOLE))
    divided = line_spans(path)
    assert len(divided) > 5
    assert [row for span in divided for row in sources_rows(path, span)] == whole
    assert [row.line for row in whole if row.reason] == [10]


def sources_rows(path: Path, span: Span) -> list[Row]:
    return list(Reading("json", WHOLE_ROW).rows(path, span))


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": ["null", {"type": "long", "logicalType": "local-timestamp-millis"}]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "tags", "type": {"type": "map", "values": "string"}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "n", "type": ["null", "int", "string"]}]}}},
    ],
}  # fmt: skip


def write_avro(path: Path, count: int, **options: Any) -> None:
    records = [
        {
            "id": uuid.UUID(int=number),
            "at": TIME.replace(tzinfo=UTC),
            "local": None if number else datetime(2026, 11, 21),
            "total": Decimal("12.30"),
            "raw": b"\xff",
            "tags": {"kind": "order"},
            "lines": [{"n": number}, {"n": "x"}],
        }
        for number in range(count)
    ]
    with path.open("wb") as file:
        fastavro.writer(file, SCHEMA, records, **options)


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_records_of_avro_are_messages(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "x.avro"
    write_avro(path, 1, codec=codec)
    [row] = read_avro(path, WHOLE, WHOLE_ROW)
    assert orjson.loads(row.data) == {
        "id": str(uuid.UUID(int=0)), "at": "2026-11-21T04:57:00.123456Z", "local": "2026-11-21T00:00:00", "total": 12.3,
        "raw": "/w==", "tags": {"kind": "order"}, "lines": [{"n": 0}, {"n": "x"}],
    }  # fmt: skip
    assert list(read_avro(path, WHOLE, Columns("raw", ("tags", "total"), "id"))) == [
        Row(None, b"\xff", {"kind": "order", "total": "12.30"}, str(uuid.UUID(int=0)))
    ]


def test_avro_is_divided_at_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "PART_BYTES", 500)
    path = tmp_path / "x.avro"
    write_avro(path, 50, sync_interval=200)
    divided = avro_spans(path)
    assert len(divided) > 3
    rows = [row for span in divided for row in read_avro(path, span, Columns("id"))]
    assert [uuid.UUID(row.data.decode()).int for row in rows] == list(range(50))


def damaged_avro(schema: bytes) -> bytes:
    """Return a file with a schema and one block, which cannot be decompressed."""
    head = b"Obj\x01\x04\x14avro.codec\x0edeflate\x16avro.schema" + bytes([2 * len(schema)]) + schema
    return head + bytes(17) + b"\x02\x04\xff\xff" + bytes(16)


def damaged_parquet() -> bytes:
    """Return a file with a column whose name is not UTF-8."""
    file = io.BytesIO()
    pq.write_table(pa.table({"name": ["x"]}), file, store_schema=False)
    return file.getvalue().replace(b"name", b"na\xffe")


@pytest.mark.parametrize(
    ("form", "content", "reason"),
    [
        ("avro", b"", "it ends too early|read|header"),
        ("avro", b"Obj\x01nonsense", "cannot be read as avro: "),
        ("avro", damaged_avro(b'"null"'), "cannot be read as avro: "),
        ("avro", damaged_avro(b'{"type": "enum", "name": "E", "symbols": ["?"]}'), "cannot be read as avro: "),
        ("parquet", b"PAR1nonsense", "cannot be read as parquet: "),
        ("parquet", damaged_parquet(), "cannot be read as parquet: "),
    ],
)
def test_a_damaged_file_or_one_of_another_format_is_refused_in_one_line(
    tmp_path: Path, form: str, content: bytes, reason: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=reason) as refused:
        sources.heads_of([path], form=form, dialect=USUAL)
    assert "\n" not in refused.value.message


def test_a_column_that_a_file_lacks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    write_avro(path, 1)
    heads = sources.heads_of([path], form="avro", dialect=USUAL)
    with pytest.raises(InvalidArgument, match="has no column 'sku'. It has: id, at, local, total, raw, tags, lines"):
        sources.check_columns([path], heads, form="avro", columns=Columns("sku"), base="")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "02", None], int),
        (["1", "-2.5"], float),
        (["1", "2026-11-21"], str),
        ([None], str),
        (["9" * 30], int),
    ],
)
def test_numbers_in_folder_names_make_a_column_of_numbers(tmp_path: Path, values: list[str | None], kind: type) -> None:
    paths = [tmp_path / f"a={value or sources.NO_VALUE}" / "x" for value in values]
    assert folder_kinds(paths, str(tmp_path)) == {"a": kind}


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
