"""A stream from a subscription to Parquet files in a process of its own, for test_kills.py.

`python -m tests.pipeline.killed_stream ADDRESS SUBSCRIPTION FOLDER` goes on until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from deliveries.pipeline.datasource import register


def write_messages(spark: SparkSession, address: str, subscription: str, folder: Path, *, to_the_end: bool) -> None:
    """Write the messages of a subscription to files: without end, or until everything is read."""
    register(spark)
    options = {"subscription": subscription, "emulatorHost": address, "idleSeconds": "2", "maxMessagesPerTrigger": "9"}
    messages = spark.readStream.format("pushhub").options(**options).load().select("message_id", "data")
    written = messages.writeStream.format("parquet").option("path", str(folder / "out"))
    written = written.option("checkpointLocation", str(folder / "checkpoint"))
    if to_the_end:
        written = written.trigger(availableNow=True)
    written.start().awaitTermination()


if __name__ == "__main__":
    session = SparkSession.builder.master("local[2]").getOrCreate()
    write_messages(session, sys.argv[1], sys.argv[2], Path(sys.argv[3]), to_the_end=False)
