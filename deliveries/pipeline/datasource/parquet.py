"""Reads the archive by Spark's own Parquet reader, which prunes columns and splits files by their row groups.

Spark tells a Python data source its filters, and not which columns a query uses, so `format("pushhub")` brings every
column of its schema through Python. This function reads no message itself: it hands Spark the manifest's files.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from deliveries.pipeline.archiving.columns import COLUMNS, spark_schema
from deliveries.pipeline.datasource.options import Selection
from pushhub.common.names import parse_topic
from pushhub.common.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The names that Hadoop's file systems have for the schemes of addresses.
HADOOP = {"s3": "s3a", "gs": "gs"}


def read_archive(
    session: SparkSession,
    address: str,
    *,
    topic: str = "",
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """Return the archive's messages, of a topic and from `since` to before `until` if given, with all its columns.

    The driver reads the manifest, and Spark's workers read the files: a folder, or a bucket by Hadoop's jars for it.
    Raises InvalidArgument for a malformed topic.
    """
    from pyspark.sql import functions as sf

    if topic:
        parse_topic(topic, field="topic")
    selection = Selection(address, tuple(COLUMNS), topic, since, until)
    root = _hadoop_address(Store(address))
    paths = [f"{root}/{file.path}" for file in selection.files()]
    if not paths:
        return session.createDataFrame([], spark_schema(selection.columns))
    # The manifest names each file, so none is a pattern.
    files = session.read.schema(f"{spark_schema(selection.columns)}, dt date")
    frame = files.option("basePath", root).option("__globPaths__", "false").parquet(*paths)
    if topic:
        frame = frame.where((sf.col("topic") == topic) & (sf.col("project") == selection.project))
    if since is not None:
        frame = frame.where(sf.col("publish_time") >= sf.lit(since))
    if until is not None:
        frame = frame.where(sf.col("publish_time") < sf.lit(until))
    # Files of older releases have no steps.
    return frame.select(*selection.columns[:-1], sf.coalesce("step", sf.lit(0)).alias("step"))


def _hadoop_address(store: Store) -> str:
    if store.is_local:
        return f"file://{store.root}"
    scheme, _, rest = store.address.partition("://")
    return f"{HADOOP[scheme]}://{rest}"
