"""Writes the archive's files in Spark's tasks, into a folder or an object store. No Django here.

The files get their final names at once, because only files in the manifest count. Files that a failed task leaves are
deleted by the token of its write. A task that runs again writes files with the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from deliveries.pipeline.archiving.columns import COLUMNS, arrow_schema
from deliveries.pipeline.archiving.manifest import ManifestFile, folder_of
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
    store = Store(address)
    rows = []
    file: _File | None = None
    with ExitStack() as stack:
        for batch in batches:
            for project, day, messages in _days(batch):
                if file is None or (file.project, file.day) != (project, day):
                    if file is not None:
                        rows.append(file.close())
                    file = _File(store, project, day, f"{name}-{context.partitionId()}.parquet", stack)
                file.add(messages)
        if file is not None:
            rows.append(file.close())
    if rows:
        yield pa.RecordBatch.from_pylist([asdict(row) for row in rows])


class _File:
    """A file that is being written."""

    def __init__(self, store: Store, project: str, day: str, name: str, stack: ExitStack) -> None:
        import pyarrow.parquet as pq

        self.project, self.day = project, day
        self._path = f"{folder_of(project, day)}/{name}"
        self._store = store
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        self._steps: set[int] = set()
        self._ids: set[int] = set()
        # If an error ends the task, the stack closes the file.
        self._open = stack.enter_context(ExitStack())
        sink = self._open.enter_context(store.write(self._path))
        self._writer = self._open.enter_context(
            pq.ParquetWriter(sink, arrow_schema(STORED), compression="zstd", use_dictionary=REPEATED)
        )

    def add(self, messages: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        if self._bytes + messages.nbytes > GROUP_BYTES:
            self._flush()
        self._waiting.append(messages)
        self._bytes += messages.nbytes
        self._rows += messages.num_rows
        self._steps |= set(pc.min_max(messages.column("step")).as_py().values())
        self._ids |= set(pc.min_max(messages.column("message_id").cast("int64")).as_py().values())

    def close(self) -> ManifestFile:
        """Finish the file and return its row for the manifest."""
        self._flush()
        self._open.close()
        size = self._store.size(self._path)
        ids, steps = sorted(self._ids), sorted(self._steps)
        return ManifestFile(self._path, ids[0], ids[-1], steps[0], steps[-1], self._rows, size)

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._waiting, self._bytes = [], 0


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
