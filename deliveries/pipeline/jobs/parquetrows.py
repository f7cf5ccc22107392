"""Reads rows of Parquet files in Spark's tasks, a few at a time.

Spark's own reader keeps whole columns of a row group in Java's heap, however large they are, and lacks some of the
types. Here pyarrow reads page by page, outside that heap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.archiving.scanning import bounded
from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.spans import Head, Span, divide
from pushhub.common.errors import first_line
from pushhub.common.stores import AnyFile, open_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: A larger batch is divided before its values become Python's.
BATCH_BYTES = 16 * 1024 * 1024
#: Rows that are decoded at a time. A message may have 10 MB, and in a dictionary one copy may stand for all of them.
DECODED_ROWS = 64
PAGE_BUFFER_BYTES = 1024 * 1024


def parquet_head(path: AnyFile) -> Head:
    """Return what the footer of a Parquet file says. A span has row groups. Raises RowError."""
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            names: list[str] = file.schema_arrow.names
            footer = file.metadata
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise RowError(first_line(error)) from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RowError(f"it has the column {twice[0]!r} twice")
    sizes = (footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))
    return Head(names, divide(sizes), footer.num_rows)


def read_parquet(path: AnyFile, span: Span, columns: Columns, folders: Mapping[str, Any]) -> Iterator[Row]:
    """Return the rows of the row groups of a span. `folders` has the columns whose values are in names of folders."""
    with open_parquet(path, pre_buffer=False, buffer_size=PAGE_BUFFER_BYTES, coerce_int96_timestamp_unit="us") as file:
        names = [name for name in file.schema_arrow.names if name not in folders]
        if columns.data:
            names = [name for name in names if name in columns.named()] or names
        groups = range(span.first, min(span.last, file.num_row_groups))
        types = _types_with_zone(file)
        for decoded in file.iter_batches(DECODED_ROWS, row_groups=groups, columns=names, use_threads=False):
            for batch in bounded(_cast(decoded, types), size=BATCH_BYTES):
                for values in batch.to_pylist(maps_as_pydicts="strict"):
                    yield row_of(None, values | folders, columns)


def _types_with_zone(file: pq.ParquetFile) -> dict[str, pa.DataType]:
    """Return the types of the columns with INT96 in them, in which these are instants in UTC.

    By default Spark writes instants as INT96, which Arrow reads as times without a zone.
    """
    leaves = [file.schema.column(number).physical_type == "INT96" for number in range(len(file.schema))]
    if not any(leaves):
        return {}
    rest = iter(leaves)
    zoned = {field.name: _with_zone(field.type, rest) for field in file.schema_arrow}
    return {name: type_ for name, type_ in zoned.items() if type_ != file.schema_arrow.field(name).type}


def _with_zone(type_: pa.DataType, is_int96: Iterator[bool]) -> pa.DataType:
    """Return the type with instants for INT96. `is_int96` yields for each leaf, in their order, whether it is one."""
    import pyarrow as pa

    def within(field: pa.Field) -> pa.Field:
        return field.with_type(_with_zone(field.type, is_int96))

    if isinstance(type_, pa.BaseExtensionType):
        _with_zone(type_.storage_type, is_int96)
        return type_
    if pa.types.is_struct(type_):
        return pa.struct([within(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(within(type_.key_field), within(type_.item_field))
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(within(type_.value_field), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(within(type_.value_field))
    if pa.types.is_list(type_):
        return pa.list_(within(type_.value_field))
    return pa.timestamp("us", "UTC") if next(is_int96) else type_


def _cast(batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    for index, name in enumerate(batch.schema.names):
        if name in types:
            batch = batch.set_column(index, name, batch.column(index).cast(types[name]))
    return batch
