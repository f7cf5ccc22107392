"""Spark's filters as expressions of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.archiving.columns import COLUMNS

if TYPE_CHECKING:
    import pyarrow.compute as pc

#: Columns whose values Arrow compares as Spark does.
COMPARED = frozenset(name for name, kind in COLUMNS.items() if kind in ("string", "timestamp", "bigint"))


def expression_of(filter_: Any) -> pc.Expression | None:
    """Return an expression that keeps at least the rows that the filter keeps, or None if Arrow has none."""
    # pyarrow.dataset would bring pandas, which takes longer than all else of planning a read.
    import pyarrow.compute as pc

    if isinstance(filter_, spark.Not):
        return _negated(filter_.child)
    if len(filter_.attribute) != 1 or filter_.attribute[0] not in COMPARED:
        return None
    field = pc.field(filter_.attribute[0])
    if isinstance(filter_, spark.IsNotNull):
        return field.is_valid()
    if isinstance(filter_, spark.In):
        return field.isin(list(filter_.value))
    if isinstance(filter_, spark.StringStartsWith):
        return pc.starts_with(field, filter_.value)
    return _comparison(filter_, field)


def _negated(filter_: Any) -> pc.Expression | None:
    """Return the negation. In Spark as in Arrow, a null passes neither a filter nor its negation."""
    expression = (
        expression_of(filter_) if isinstance(filter_, (spark.EqualTo, spark.In, spark.StringStartsWith)) else None
    )
    return None if expression is None else ~expression


def _comparison(filter_: Any, field: Any) -> pc.Expression | None:
    if isinstance(filter_, spark.EqualTo):
        return field == filter_.value
    if isinstance(filter_, spark.GreaterThan):
        return field > filter_.value
    if isinstance(filter_, spark.GreaterThanOrEqual):
        return field >= filter_.value
    if isinstance(filter_, spark.LessThan):
        return field < filter_.value
    return field <= filter_.value if isinstance(filter_, spark.LessThanOrEqual) else None
