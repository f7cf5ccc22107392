"""Whether a Parquet file is whole: its footer can be good while its pages are not."""

from __future__ import annotations

import errno
from pathlib import Path

#: Rows that are in memory at a time.
BATCH_ROWS = 1000


def damage(path: Path, *, rows: int | None = None) -> str:
    """Read a file whole and return what is wrong with it; empty for a good one.

    `rows` is how many it should have. Raises OSError for trouble that is not the file's, such as a missing one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                count += batch.num_rows
    except OSError as error:
        # Arrow raises it for damaged pages as well, without a number.
        if error.errno not in (None, errno.EIO):
            raise
        return f"it cannot be read: {first_line(error)}"
    except pa.ArrowException as error:
        return f"it cannot be read: {first_line(error)}"
    return "" if rows in (None, count) else f"it has {count} rows instead of {rows}"


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
