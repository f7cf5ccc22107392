"""Reads rows of Parquet files in Spark's tasks, a few at a time.

Spark's own reader keeps whole columns of a row group in Java's heap, however large they are. Here pyarrow reads page by
page, outside that heap.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pushhub.common.stores import AnyFile, file_of, open_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: An Arrow batch ends when it has this many rows or bytes.
BATCH_ROWS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
#: Rows that are decoded at a time. A message may have 10 MB, and in a dictionary one copy may stand for all of them.
DECODED_ROWS = 64
PAGE_BUFFER_BYTES = 1024 * 1024
#: Row groups of this size together are one part.
PART_BYTES = 128 * 1024 * 1024
#: The columns that rows have in addition to those of their file. No column of a file may have such a name.
PART, FILE = "_pushhub_part", "_pushhub_file"
#: What Hive writes into the name of a folder whose rows have no value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class Span:
    """Row groups of a file, from the first to before the last."""

    first: int
    last: int


def spans_of(path: AnyFile) -> list[Span]:
    """Divide a file into spans of about PART_BYTES."""
    footer = footer_of(path)
    spans, first, size = [], 0, 0
    for number in range(footer.num_row_groups):
        size += footer.row_group(number).total_byte_size
        if size >= PART_BYTES or number == footer.num_row_groups - 1:
            spans.append(Span(first, number + 1))
            first, size = number + 1, 0
    return spans or [Span(0, 0)]


def footer_of(path: AnyFile) -> pq.FileMetaData:
    with open_parquet(path) as file:
        return file.metadata


def schema_of(path: AnyFile) -> pa.Schema:
    """Return the columns of a Parquet file, in types that Spark has as well."""
    import pyarrow as pa

    with open_parquet(path) as file:
        columns = [file.schema.column(number) for number in range(len(file.schema))]
        schema = file.schema_arrow
    # By default Spark writes instants as INT96, which Arrow reads as times without a zone.
    instants = {column.path for column in columns if column.physical_type == "INT96"}
    instant = pa.timestamp("us", "UTC")
    return pa.schema([(field.name, instant if field.name in instants else _kind(field.type)) for field in schema])


def _kind(kind: pa.DataType) -> pa.DataType:
    """Return a type that Spark has: Arrow's type itself, or a replacement that holds its values."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _kind(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_kind(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _kind(field.type)) for field in kind])
    lacking = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20),
        pa.float16(): pa.float32(),
        pa.time32("ms"): pa.time64("us"),
        pa.null(): pa.int32(),
    }
    return lacking.get(kind, kind)


def folder_kind(values: Iterable[str | None]) -> str:
    """Return Spark's type of a column whose values are in folder names: a number if all are numbers, else a string."""
    texts = [value for value in values if value is not None]
    for kind, is_kind in (("bigint", re.compile(r"-?\d{1,18}")), ("double", re.compile(r"-?\d+(\.\d+)?"))):
        if texts and all(is_kind.fullmatch(text) for text in texts):
            return kind
    return "string"


def folders_of(path: AnyFile, base: str) -> dict[str, str | None]:
    """Return the columns that folders such as `day=1` below `base` stand for."""
    if not base:
        return {}
    folders = str(path.absolute()).removeprefix(f"{base}/").split("/")[:-1]
    names = [folder.partition("=") for folder in folders if "=" in folder]
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in names}


def read_spans(batches: Iterable[pa.RecordBatch], *, schema: pa.Schema, base: str) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: read the spans that are rows of (part, path, first, last), in `schema`.

    `schema` begins with PART and FILE. A column that a file lacks is null.
    """
    for batch in batches:
        for row in batch.to_pylist():
            path = file_of(row["path"])
            constants = {PART: row["part"], FILE: path.name, **folders_of(path, base)}
            for table in _tables(path, Span(row["first"], row["last"]), schema, constants):
                yield from table.combine_chunks().to_batches()


def _tables(path: AnyFile, span: Span, schema: pa.Schema, constants: dict[str, Any]) -> Iterator[pa.Table]:
    with open_parquet(path, pre_buffer=False, buffer_size=PAGE_BUFFER_BYTES) as file:
        names = [name for name in schema.names if name not in constants and name in file.schema_arrow.names]
        groups = range(span.first, min(span.last, file.num_row_groups))
        gathered: list[pa.RecordBatch] = []
        for decoded in file.iter_batches(DECODED_ROWS, row_groups=groups, columns=names, use_threads=False):
            for batch in _bounded(decoded):
                gathered.append(batch)
                rows = sum(each.num_rows for each in gathered)
                if rows >= BATCH_ROWS or sum(each.nbytes for each in gathered) >= BATCH_BYTES:
                    yield _table(gathered, schema, constants)
                    gathered = []
        if gathered:
            yield _table(gathered, schema, constants)


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch in halves until each is small enough, or has one row."""
    if batch.num_rows > 1 and batch.nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _bounded(batch.slice(0, half))
        yield from _bounded(batch.slice(half))
    else:
        yield batch


def _table(batches: Sequence[pa.RecordBatch], schema: pa.Schema, constants: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    read = pa.Table.from_batches(batches)
    columns = []
    for field in schema:
        if field.name in constants:
            column = pa.array([constants[field.name]] * read.num_rows, field.type)
        elif field.name in read.column_names:
            column = read[field.name].cast(field.type)
        else:
            column = pa.nulls(read.num_rows, field.type)
        columns.append(column)
    return pa.table(columns, schema=schema)
