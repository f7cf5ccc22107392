"""A task that publishes and a driver that pulls, for processes of their own."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

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
    reader, end, texts = _next_batch(options)
    reader.commit(end)
    reader.stop()
    return texts


def hold(options: Mapping[str, str]) -> None:
    """Print the data of the next batch of messages, and keep it at work."""
    _, _, texts = _next_batch(options)
    print(*texts, flush=True)
    signal.pause()


def _next_batch(options: Mapping[str, str]) -> tuple[Any, Any, list[bytes]]:
    named = {"subscription": WORKER} | dict(options)
    reader = PushHubDataSource(CaseInsensitiveDict(named)).streamReader(SCHEMA)
    start = end = reader.initialOffset()
    while end == start:
        end = reader.latestOffset(start, None)
    parts = reader.partitions(start, end)
    texts = [data for part in parts for batch in reader.read(part) for data in batch.column("data").to_pylist()]
    return reader, end, texts
