"""Reads the archive as a table: only the files, row groups and columns that a query needs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.archiving.columns import COLUMNS
from deliveries.pipeline.archiving.manifest import ManifestFile
from deliveries.pipeline.archiving.scanning import scan
from deliveries.pipeline.datasource.options import Selection
from pushhub.common.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

#: The most compressed bytes, and rows, of a file that one task reads. Tasks share the row groups of a larger file.
#: A row group of small messages has about so many rows.
PART_BYTES = 16 * 2**20
PART_ROWS = 300_000
#: Columns whose values Arrow compares as Spark does.
COMPARED = frozenset(name for name, kind in COLUMNS.items() if kind in ("string", "timestamp", "bigint"))

COMPARISONS: Mapping[type, Any] = {
    spark.EqualTo: operator.eq,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
}


@dataclass(frozen=True)
class FilePart(spark.InputPartition):
    """A part of a file, or only its messages of the steps after `after` and up to `to`. None is no limit."""

    path: str
    part: int
    parts: int
    after: int | None = None
    to: int | None = None


class ArchiveReader(spark.DataSourceReader):
    """Reads the messages of a selection that pass Spark's filters."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._filters: list[spark.Filter] = []

    def pushFilters(self, filters: list[spark.Filter]) -> Iterable[spark.Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that Arrow can apply too. Spark applies all filters again, so extra rows do no harm."""
        self._filters = [filter_ for filter_ in filters if expression_of(filter_) is not None]
        return filters

    def partitions(self) -> Sequence[spark.InputPartition]:
        return [part for file in self._selection.files() for part in parts_of(file)]

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark reads one empty partition of an archive without files.
        if not isinstance(partition, FilePart):
            return iter(())
        return read_part(self._selection, partition, where=self._expression())

    def _expression(self) -> pc.Expression:
        expression = self._selection.expression()
        for filter_ in self._filters:
            expression &= expression_of(filter_)
        return expression


def parts_of(file: ManifestFile, *, after: int | None = None, to: int | None = None) -> list[FilePart]:
    parts = max(-(-file.bytes // PART_BYTES), -(-file.rows // PART_ROWS), 1)
    return [FilePart(file.path, part, parts, after, to) for part in range(parts)]


def read_part(selection: Selection, part: FilePart, *, where: pc.Expression) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds

    if part.after is not None:
        where &= ds.field("step") > part.after
    if part.to is not None:
        where &= ds.field("step") <= part.to
    store = Store(selection.archive)
    return scan(store, part.path, columns=selection.columns, where=where, part=part.part, parts=part.parts)


def expression_of(filter_: Any) -> pc.Expression | None:
    """Return an expression that keeps at least the rows that the filter keeps, or None if Arrow has none."""
    # pyarrow.dataset would bring pandas, which takes longer than all else of planning a read.
    import pyarrow.compute as pc

    if isinstance(filter_, spark.Not):
        # In Spark as in Arrow, a null passes neither a filter nor its negation.
        is_exact = isinstance(filter_.child, (spark.EqualTo, spark.In, spark.StringStartsWith))
        expression = expression_of(filter_.child) if is_exact else None
        return None if expression is None else ~expression
    if len(filter_.attribute) != 1 or filter_.attribute[0] not in COMPARED:
        return None
    field = pc.field(filter_.attribute[0])
    if isinstance(filter_, spark.IsNotNull):
        return field.is_valid()
    if isinstance(filter_, spark.In):
        return field.isin(list(filter_.value))
    if isinstance(filter_, spark.StringStartsWith):
        return pc.starts_with(field, filter_.value)
    compare = COMPARISONS.get(type(filter_))
    return compare(field, filter_.value) if compare is not None else None
