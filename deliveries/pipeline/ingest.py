"""Ingest: rows of any files that Spark reads, as messages of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pushhub.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")


def rows_read(session: SparkSession, *, source: str, form: str) -> DataFrame:
    """The rows, in an order that is the same each time: file by file, as their names are."""
    reader = session.read
    return reader.csv(source, header=True) if form == "csv" else reader.format(form).load(source)


def messages_of(
    rows: DataFrame, *, data_column: str, attribute_columns: Sequence[str], ordering_key_column: str
) -> DataFrame:
    """data, attributes, ordering_key; without a column for it, the data is the whole row in JSON."""
    from pyspark.sql import functions as f

    named = [name for name in (data_column, *attribute_columns, ordering_key_column) if name]
    for name in named:
        if name not in rows.columns:
            raise InvalidArgument(f"The source has no column {name!r}. It has: {', '.join(rows.columns)}.", field=name)
    data = (
        f.col(f"`{data_column}`") if data_column else f.to_json(f.struct(*[f.col(f"`{one}`") for one in rows.columns]))
    )
    attributes = [part for one in attribute_columns for part in (f.lit(one), f.col(f"`{one}`").cast("string"))]
    return rows.select(
        data.cast("binary").alias("data"),
        (f.create_map(*attributes) if attributes else f.lit(None)).cast("map<string,string>").alias("attributes"),
        (f.col(f"`{ordering_key_column}`") if ordering_key_column else f.lit("")).cast("string").alias("ordering_key"),
    )
