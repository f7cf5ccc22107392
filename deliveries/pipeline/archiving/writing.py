"""Writes the archive's files in Spark's tasks, into a folder or an object store. No Django here.

The files get their final names at once, because only files in the manifest count. Files that a failed task leaves are
deleted by the token of its write. A task that runs again writes files with the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.archiving.columns import COLUMNS, arrow_schema
from deliveries.pipeline.archiving.manifest import ManifestFile, folder_of
from pushhub.common.batches import gather
from pushhub.common.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa

#: Writers and readers keep a whole row group in memory, and a message may have 10 MB.
GROUP_BYTES = 32 * 2**20
#: What `write_files` returns about each file, in Spark's terms.
WRITTEN = ", ".join(f"{field.name} {'string' if field.name == 'path' else 'bigint'}" for field in fields(ManifestFile))
STORED = tuple(name for name in COLUMNS if name != "project")
#: Columns with few values.
REPEATED = ["topic", "ordering_key", "attributes.key_value.key", "attributes.key_value.value", "step"]


def write_files(batches: Iterator[pa.RecordBatch], *, address: str, name: str) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: write messages that are sorted by project and `dt`, one file for each project's day.

    `name` is the beginning of the files' names. Each message has the `step` that first archived it.
    """
    import pyarrow as pa
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    store, suffix = Store(address), f"{name}-{context.partitionId()}.parquet"
    pieces = (piece for batch in batches for piece in _days(batch))
    rows = [
        asdict(_write_file(store, f"{folder_of(*day)}/{suffix}", (messages for *_, messages in of_day)))
        for day, of_day in groupby(pieces, key=itemgetter(0, 1))
    ]
    if rows:
        yield pa.RecordBatch.from_pylist(rows)


def _write_file(store: Store, path: str, batches: Iterable[pa.RecordBatch]) -> ManifestFile:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    ids, steps, count = set[int](), set[int](), 0
    form: Any = {"compression": "zstd", "use_dictionary": REPEATED}
    with store.write(path) as sink, pq.ParquetWriter(sink, arrow_schema(STORED), **form) as writer:
        for group in gather(batches, most=GROUP_BYTES, size_of=lambda batch: batch.nbytes, size=GROUP_BYTES):
            table = pa.Table.from_batches(group)
            writer.write_table(table, row_group_size=table.num_rows)
            ids |= set(pc.min_max(table["message_id"].cast("int64")).as_py().values())
            steps |= set(pc.min_max(table["step"]).as_py().values())
            count += table.num_rows
    return ManifestFile(path, min(ids), max(ids), min(steps), max(steps), count, store.size(path))


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, str, pa.RecordBatch]]:
    """Return the rows of a sorted batch by project and day, with the columns that are stored."""
    import pyarrow as pa

    schema = arrow_schema(STORED)
    messages = pa.RecordBatch.from_arrays(
        [batch.column(field.name).cast(field.type) for field in schema], schema=schema
    )
    keys = list(zip(batch.column("project").to_pylist(), batch.column("dt").to_pylist(), strict=True))
    starts = [index for index, key in enumerate(keys) if not index or key != keys[index - 1]]
    for start, end in zip(starts, [*starts[1:], len(keys)], strict=True):
        yield *keys[start], messages.slice(start, end - start)
