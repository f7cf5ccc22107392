"""Checks whether a Parquet file is intact: its footer can be good while its pages are damaged."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from pushhub.common.errors import first_line

#: Rows that are in memory at a time.
BATCH_ROWS = 1000


def damage(path: Path | str, *, rows: int | None = None, filesystem: Any = None) -> str:
    """Read all of a file and return what is wrong with it, or "" for a good file.

    `rows` is how many rows it should have, and `filesystem` is pyarrow's, for a file that is not on this machine.
    Raises OSError if the content is not the cause, for instance for a missing file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    try:
        with pq.ParquetFile(path, filesystem=filesystem) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                count += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if is_not_of_content(error):
            raise
        return f"it cannot be read: {first_line(error)}"
    return "" if rows in (None, count) else f"it has {count} rows instead of {rows}"


def is_not_of_content(error: Exception) -> bool:
    """Return whether the system refused to read a file. Arrow raises OSError for damage too, without a number."""
    return isinstance(error, OSError) and error.errno not in (None, errno.EIO)
