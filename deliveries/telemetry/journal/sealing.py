"""Sealing turns a closed journal into a Parquet segment, as a whole or not at all.

The process that gets the lock of the journal seals it: usually the maintenance worker, otherwise the rollup.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.columns import Rows, parse_line, table_of
from pushhub.common.stores import replaced_file

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

#: The errors of a line that is not one of ours, or whose values fit no column.
UNFIT = (ValueError, TypeError, AttributeError, OverflowError)
#: One task of Spark reads a whole segment, so one row group has all its rows.
ROW_GROUP = 1_000_000


def seal(folder: Path, path: Path) -> int:
    """Write the segment of a journal that the caller has locked, remove the journal, and return the number of rows.

    After an OSError the journal is unchanged, and sealing can be tried again.
    """
    import pyarrow.parquet as pq

    table = _table_of(read_lines(path), path)
    if table.num_rows:
        # The journal is removed next, so the segment must survive a power failure.
        with replaced_file(files.segment_path(folder, path.name.removesuffix(files.JOURNAL_SUFFIX))) as file:
            pq.write_table(table, file, compression="zstd", row_group_size=ROW_GROUP)
    path.unlink()
    return int(table.num_rows)


def _table_of(parts: list[Rows], path: Path) -> pa.Table:
    """Return the events of the lines, without those of a line that no column takes: the others must not wait for it."""
    try:
        return table_of(parts)
    except UNFIT:
        return table_of([part for part in parts if _fits(part, path)])


def _fits(part: Rows, path: Path) -> bool:
    try:
        table_of([part])
    except UNFIT as error:
        logger.error("%d events of %s are left out: %s", part.count, path.name, error)
        return False
    return True


def read_lines(path: Path) -> list[Rows]:
    """Return the events of a journal. A last line that was not written to its end is left out."""
    parts = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            try:
                parts.append(parse_line(line))
            except UNFIT as error:
                logger.error("line %d of %s is left out: %s", number, path.name, error)
    return parts


def seal_closed(folder: Path) -> int:
    """Seal every journal that no process writes any more; return how many.

    Raises the OSError of a journal that cannot be sealed when all others are: it may be another user's, for instance.
    """
    count = 0
    failure: OSError | None = None
    for path in files.journals(folder):
        try:
            with files.taken_over(path) as is_locked:
                if is_locked:
                    seal(folder, path)
                    count += 1
        except OSError as error:
            failure = error
    if failure is not None:
        raise failure
    return count
