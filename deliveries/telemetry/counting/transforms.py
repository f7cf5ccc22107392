"""From events to metrics: DataFrame in, DataFrame out. The rollup, the backfill and the tests all use these."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deliveries.rules.histogram import SCALE
from deliveries.telemetry.journal.schemas import EVENT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

#: The key of a partial row.
KEYS = ("segment", "project", "resource", "event", "minute", "response_class", "response_code", "host")


def event_schema() -> StructType:
    """Return the columns of a segment. Columns that a file of an older release lacks are null."""
    from pyspark.sql import types

    kinds = {
        "string": types.StringType(),
        "int16": types.ShortType(),
        "int32": types.IntegerType(),
        "int64": types.LongType(),
        "timestamp": types.TimestampType(),
    }
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in EVENT])


def partials(events: DataFrame) -> DataFrame:
    """Return the sums by segment and key. `events` has the columns of EVENT and `segment`, the name of the file.

    Only integers are added, so the order does not matter. `buckets` and `counts` are lists of the same length.
    """
    from pyspark.sql import functions as f

    bucketed = (
        events.select(
            "segment",
            "project",
            f.coalesce("subscription", "topic").alias("resource"),
            "event",
            _minute(f.col("time")).alias("minute"),
            # An event without a response has its outcome here: ack or nack of a puller, drop.
            f.coalesce("response_class", "outcome").alias("response_class"),
            f.coalesce("response_code", f.lit(0)).alias("response_code"),
            f.coalesce("host", f.lit("")).alias("host"),
            "bytes",
            "latency_us",
            _bucket(f.col("latency_us")).alias("bucket"),
        )
        .groupBy(*KEYS, "bucket")
        .agg(
            f.count(f.lit(1)).alias("n"),
            f.sum("bytes").alias("bytes"),
            f.sum("latency_us").alias("latency_us_sum"),
            f.max("latency_us").alias("latency_us_max"),
        )
    )
    is_timed = f.col("bucket").isNotNull()
    return bucketed.groupBy(*KEYS).agg(
        f.sum("n").alias("n"),
        f.coalesce(f.sum("bytes"), f.lit(0)).alias("bytes"),
        f.coalesce(f.sum("latency_us_sum"), f.lit(0)).alias("latency_us_sum"),
        f.coalesce(f.max("latency_us_max"), f.lit(0)).alias("latency_us_max"),
        f.collect_list(f.when(is_timed, f.col("bucket"))).alias("buckets"),
        f.collect_list(f.when(is_timed, f.col("n"))).alias("counts"),
    )


def _minute(time: Column) -> Column:
    """Return the start of the minute, in seconds since 1970."""
    from pyspark.sql import functions as f

    return f.floor(f.unix_micros(time) / 60_000_000) * 60


def _bucket(latency_us: Column) -> Column:
    """Return `rules.histogram.bucket_of` as an expression of Spark; null for null, which `greatest` would skip."""
    from pyspark.sql import functions as f

    bucket = f.ceil(f.log2(f.greatest(latency_us, f.lit(1))) * 2**SCALE).cast("int")
    return f.when(latency_us.isNotNull(), bucket)
