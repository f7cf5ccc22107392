"""A task that publishes and a driver that pulls, for processes of their own."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, StructField, StructType

from deliveries.pipeline.datasource.source import PushHubDataSource

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
SCHEMA = StructType([StructField("data", BinaryType())])


def write(options: Mapping[str, str], data: bytes) -> None:
    """Publish a message."""
    sink = PushHubDataSource(CaseInsensitiveDict({"topic": TOPIC} | dict(options))).writer(SCHEMA, False)
    sink.write(iter([pa.RecordBatch.from_pydict({"data": pa.array([data], pa.binary())})]))


def read(options: Mapping[str, str]) -> list[bytes]:
    """Return the data of the next batch of messages, and acknowledge them."""
    named = {"subscription": WORKER} | dict(options)
    reader = PushHubDataSource(CaseInsensitiveDict(named)).streamReader(SCHEMA)
    start = end = reader.initialOffset()
    while end == start:
        end = reader.latestOffset(start, None)
    parts = reader.partitions(start, end)
    reader.commit(end)
    reader.stop()
    return [data for part in parts for batch in reader.read(part) for data in batch.column("data").to_pylist()]
