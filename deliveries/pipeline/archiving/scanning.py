"""Reads the archive's files in Spark's tasks, from a folder or an object store. No Django here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.archiving.columns import COLUMNS, arrow_schema
from deliveries.pipeline.archiving.manifest import project_of
from pushhub.common.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa

#: The approximate size of a batch that Python passes to Java.
BATCH_BYTES = 16 * 2**20
#: Rows that are decoded at a time. They have at most 32 MiB, as a row group has no more.
BATCH_ROWS = 20_000


def scan(
    store: Store, name: str, *, columns: tuple[str, ...], where: Any = None, part: int = 0, parts: int = 1
) -> Iterator[pa.RecordBatch]:
    """Return the messages of a file, or of one of several `parts` into which its row groups are divided.

    `where` is an expression of Arrow. Row groups whose statistics exclude it are not read.
    """
    import pyarrow.dataset as ds

    fragment = ds.ParquetFileFormat().make_fragment(
        store.path(name), store.filesystem, partition_expression=ds.field("project") == project_of(name)
    )
    if parts > 1:
        groups = [group.id for group in fragment.row_groups]
        own = groups[len(groups) * part // parts : len(groups) * (part + 1) // parts]
        if not own:
            return
        fragment = fragment.subset(row_group_ids=own)
    batches = fragment.scanner(
        schema=arrow_schema(),
        columns=list(columns),
        filter=where,
        batch_size=BATCH_ROWS,
        # Reading ahead would keep several row groups in memory.
        batch_readahead=1,
        use_threads=False,
    ).to_batches()
    for batch in batches:
        yield from bounded(_completed(batch, columns), size=BATCH_BYTES)


def scan_files(batches: Iterator[pa.RecordBatch], *, address: str) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: return all messages of the files whose names are in the column `path`."""
    store = Store(address)
    for batch in batches:
        for name in batch.column("path").to_pylist():
            yield from scan(store, name, columns=tuple(COLUMNS))


def _completed(batch: pa.RecordBatch, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the batch with exactly the types of the schema. Files of older releases have no steps: they get 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = arrow_schema(columns)
    arrays = [
        pc.fill_null(batch.column(name), 0) if name == "step" else batch.column(name).cast(schema.field(name).type)
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def bounded(batch: pa.RecordBatch, *, size: int) -> Iterator[pa.RecordBatch]:
    """Divide a batch in halves until each has at most `size` bytes, or one row."""
    if batch.num_rows > 1 and batch.nbytes > size:
        half = batch.num_rows // 2
        yield from bounded(batch.slice(0, half), size=size)
        yield from bounded(batch.slice(half), size=size)
    elif batch.num_rows:
        yield batch
