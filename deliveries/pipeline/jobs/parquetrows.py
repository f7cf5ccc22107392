"""Reads rows of Parquet files in Spark's tasks, a few at a time.

Spark's own reader keeps whole columns of a row group in Java's heap, however large they are, and lacks some of the
types. Here pyarrow reads page by page, outside that heap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.spans import Span, divide
from pushhub.common.stores import AnyFile, open_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: A larger batch is divided before its values become Python's.
BATCH_BYTES = 16 * 1024 * 1024
#: Rows that are decoded at a time. A message may have 10 MB, and in a dictionary one copy may stand for all of them.
DECODED_ROWS = 64
PAGE_BUFFER_BYTES = 1024 * 1024


def footer_of(path: AnyFile) -> pq.FileMetaData:
    with open_parquet(path) as file:
        return file.metadata


def parquet_columns(path: AnyFile) -> list[str]:
    """Return the columns of a Parquet file. Raises RowError."""
    import pyarrow as pa

    try:
        with open_parquet(path) as file:
            names: list[str] = file.schema_arrow.names
    except (pa.ArrowException, OSError) as error:
        raise RowError((str(error).splitlines() or [type(error).__name__])[0]) from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RowError(f"it has the column {twice[0]!r} twice")
    return names


def parquet_spans(path: AnyFile) -> list[Span]:
    """Divide a file at its row groups."""
    footer = footer_of(path)
    return divide(footer.row_group(number).total_byte_size for number in range(footer.num_row_groups))


def read_parquet(path: AnyFile, span: Span, columns: Columns, folders: Mapping[str, Any]) -> Iterator[Row]:
    """Return the rows of the row groups of a span. `folders` has the columns whose values are in names of folders."""
    with open_parquet(path, pre_buffer=False, buffer_size=PAGE_BUFFER_BYTES, coerce_int96_timestamp_unit="us") as file:
        names = [name for name in file.schema_arrow.names if name not in folders]
        if columns.data:
            names = [name for name in names if name in columns.named()] or names
        groups = range(span.first, min(span.last, file.num_row_groups))
        instants = _instants(file)
        for decoded in file.iter_batches(DECODED_ROWS, row_groups=groups, columns=names, use_threads=False):
            for batch in _bounded(_with_zone(decoded, instants)):
                for values in batch.to_pylist(maps_as_pydicts="strict"):
                    yield row_of(None, values | folders, columns)


def _instants(file: pq.ParquetFile) -> set[str]:
    """Return the columns of INT96: by default Spark writes instants so, which Arrow reads as times without a zone."""
    columns = [file.schema.column(number) for number in range(len(file.schema))]
    return {column.path for column in columns if column.physical_type == "INT96"}


def _with_zone(batch: pa.RecordBatch, instants: set[str]) -> pa.RecordBatch:
    import pyarrow as pa

    for index, name in enumerate(batch.schema.names):
        if name in instants:
            batch = batch.set_column(index, name, batch.column(index).cast(pa.timestamp("us", "UTC")))
    return batch


def _bounded(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Divide a batch in halves until each is small enough, or has one row."""
    if batch.num_rows > 1 and batch.nbytes > BATCH_BYTES:
        half = batch.num_rows // 2
        yield from _bounded(batch.slice(0, half))
        yield from _bounded(batch.slice(half))
    else:
        yield batch
