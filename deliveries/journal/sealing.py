"""Sealing: a closed journal becomes a Parquet segment, whole or not at all.

Whoever gets the lock of a journal seals it: maintenance, mostly, or the rollup.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from deliveries.journal import files
from deliveries.journal.columns import Events, line_parse, table_of

logger = logging.getLogger(__name__)

#: Rows of a segment are read by Spark in one task; a row group holds them all.
ROW_GROUP = 1_000_000


def seal(folder: Path, path: Path) -> int:
    """Write the segment of a journal that the caller has locked, then remove the journal; returns the rows.

    OSError leaves the journal as it is, for another try.
    """
    import pyarrow.parquet as pq

    parts = read_lines(path)
    if parts:
        target = files.segment_path(folder, path.name.removesuffix(files.JOURNAL_SUFFIX))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Readers leave alone what begins with a dot.
        hidden = target.with_name(f".{target.name}")
        try:
            with hidden.open("wb") as file:
                pq.write_table(table_of(parts), file, compression="zstd", row_group_size=ROW_GROUP)
                file.flush()
                # The journal goes next, so the segment must outlast the power.
                os.fsync(file.fileno())
            hidden.rename(target)
        except OSError:
            hidden.unlink(missing_ok=True)
            raise
    path.unlink()
    return sum(part.count for part in parts)


def read_lines(path: Path) -> list[Events]:
    """The events of a journal, without a last line that a process died in the middle of."""
    parts = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            try:
                parts.append(line_parse(line))
            except ValueError as error:
                logger.error("line %d of %s is left out: %s", number, path.name, error)
    return parts


def seal_closed(folder: Path) -> int:
    """Seal every journal that nobody writes any more; returns how many."""
    count = 0
    for path in files.journals(folder):
        with files.taken_over(path) as is_ours:
            if is_ours:
                seal(folder, path)
                count += 1
    return count
