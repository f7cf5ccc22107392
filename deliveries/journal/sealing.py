"""Sealing: a closed journal becomes a Parquet segment, whole or not at all."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.journal import files

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: Rows of a segment are read by Spark in one task; a row group holds them all.
ROW_GROUP = 1_000_000


def seal(folder: Path, path: Path) -> int:
    """Write the segment of a journal that the caller has locked, then remove the journal; returns the rows.

    OSError leaves the journal as it is, for another try. What is not written whole, the last batch of a process that
    died in the middle of it, is left out.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    batches = read_batches(path)
    rows: int = sum(batch.num_rows for batch in batches)
    if rows:
        target = files.segment_path(folder, path.name.removesuffix(files.JOURNAL_SUFFIX))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Readers leave alone what begins with a dot.
        hidden = target.with_name(f".{target.name}")
        # With the columns of the release that wrote it; readers see null in those that came later.
        table = pa.Table.from_batches(batches)
        try:
            pq.write_table(table, hidden, compression="zstd", row_group_size=ROW_GROUP)
            hidden.rename(target)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
    path.unlink()
    return rows


def read_batches(path: Path) -> list[pa.RecordBatch]:
    """The whole batches of a journal."""
    import pyarrow as pa

    batches = []
    with pa.memory_map(os.fspath(path)) if path.stat().st_size else pa.BufferReader(b"") as source:
        try:
            reader = pa.ipc.open_stream(source)
            while True:
                batches.append(reader.read_next_batch())
        except (pa.ArrowInvalid, OSError, StopIteration):
            return batches


def seal_leftovers(folder: Path) -> int:
    """Seal the journals of processes that are no more; returns how many."""
    count = 0
    for path in files.journals(folder):
        with files.taken_over(path) as is_ours:
            if is_ours:
                rows = seal(folder, path)
                logger.info("sealed %d events that a process left in %s", rows, path.name)
                count += 1
    return count
