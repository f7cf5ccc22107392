"""Reads the files of an ingest in Spark's tasks, whatever their format, as rows that are messages or rejects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deliveries.pipeline.archiving.columns import arrow_schema_of
from deliveries.pipeline.jobs.avrorows import read_avro
from deliveries.pipeline.jobs.messages import Columns, Row
from deliveries.pipeline.jobs.parquetrows import read_parquet
from deliveries.pipeline.jobs.rows import USUAL, Dialect, read_rows
from deliveries.pipeline.jobs.sources import folder_values
from deliveries.pipeline.jobs.spans import Span
from pushhub.common.batches import gather
from pushhub.common.stores import AnyFile, file_of

if TYPE_CHECKING:
    import pyarrow as pa

#: The most rows and bytes of an Arrow batch.
BATCH_ROWS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
#: `row` is the number of the row in its part; `line` is null in formats without lines.
COLUMNS: Mapping[str, str] = {
    **{"part": "int", "row": "bigint", "file": "string", "line": "bigint", "data": "binary"},
    **{"attributes": "map<string,string>", "ordering_key": "string", "reason": "string", "text": "string"},
}
#: The columns that are fields of a row.
ROW = ("line", "data", "ordering_key", "reason", "text")
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read."""

    form: str
    columns: Columns
    dialect: Dialect = USUAL
    #: The folder below which names of folders are columns, and the types of these.
    base: str = ""
    kinds: Mapping[str, type] = field(default_factory=dict)

    def rows(self, path: AnyFile, span: Span) -> Iterator[Row]:
        """Return the rows of a span of a file."""
        if self.form == "parquet":
            return read_parquet(path, span, self.columns, folder_values(path, self.base, self.kinds))
        if self.form == "avro":
            return read_avro(path, span, self.columns)
        return read_rows(path, form=self.form, columns=self.columns, dialect=self.dialect, span=span)


def read_files(batches: Iterable[pa.RecordBatch], *, reading: Reading) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: return the rows of the spans that are rows of (part, path, first, last, line), in SCHEMA."""
    for batch in batches:
        for each in batch.to_pylist():
            path, number = file_of(each["path"]), 0
            span = Span(each["first"], each["last"], each["line"])
            rows_of_span = reading.rows(path, span)
            for rows in gather(rows_of_span, most=BATCH_ROWS, size_of=lambda row: row.size, size=BATCH_BYTES):
                yield _batch(each["part"], path.name, number, rows)
                number += len(rows)


def _batch(part: int, name: str, before: int, rows: Sequence[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    values = {
        "part": [part] * len(rows),
        "row": range(before + 1, before + 1 + len(rows)),
        "file": [name] * len(rows),
        "attributes": [list((row.attributes or {}).items()) for row in rows],
        **{column: [getattr(row, column) for row in rows] for column in ROW},
    }
    return pa.RecordBatch.from_pydict(values, schema=arrow_schema_of(COLUMNS))
