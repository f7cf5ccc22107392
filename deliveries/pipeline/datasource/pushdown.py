"""Spark's filters as expressions of Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.archiving.columns import COLUMNS

if TYPE_CHECKING:
    import pyarrow.compute as pc

#: Columns whose values Arrow compares as Spark does.
COMPARED = frozenset(name for name, kind in COLUMNS.items() if kind in ("string", "timestamp", "bigint"))


def expression_of(one: Any) -> pc.Expression | None:
    """Return the expression that keeps at least what the filter keeps, or None where Arrow has none."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    if isinstance(one, spark.Not):
        return _negated(one.child)
    if len(one.attribute) != 1 or one.attribute[0] not in COMPARED:
        return None
    field = ds.field(one.attribute[0])
    if isinstance(one, spark.IsNotNull):
        return field.is_valid()
    if isinstance(one, spark.In):
        return field.isin(list(one.value))
    if isinstance(one, spark.StringStartsWith):
        return pc.starts_with(field, one.value)
    return _comparison(one, field)


def _negated(one: Any) -> pc.Expression | None:
    """A value that is null passes neither a filter nor its negation, in both."""
    expression = expression_of(one) if isinstance(one, (spark.EqualTo, spark.In, spark.StringStartsWith)) else None
    return None if expression is None else ~expression


def _comparison(one: Any, field: Any) -> pc.Expression | None:
    if isinstance(one, spark.EqualTo):
        return field == one.value
    if isinstance(one, spark.GreaterThan):
        return field > one.value
    if isinstance(one, spark.GreaterThanOrEqual):
        return field >= one.value
    if isinstance(one, spark.LessThan):
        return field < one.value
    return field <= one.value if isinstance(one, spark.LessThanOrEqual) else None
