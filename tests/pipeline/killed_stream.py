"""A stream from a subscription to Parquet files in a process of its own, for test_kills.py.

`python -m tests.pipeline.killed_stream ADDRESS SUBSCRIPTION FOLDER` goes on until it is killed; with one more argument,
until everything is read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from deliveries.pipeline.datasource import register


def main() -> None:
    address, subscription, folder, *to_the_end = sys.argv[1:]
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    register(spark)
    options = {"subscription": subscription, "emulatorHost": address, "idleSeconds": "2", "maxMessagesPerTrigger": "9"}
    messages = spark.readStream.format("pushhub").options(**options).load().select("message_id", "data")
    written = messages.writeStream.format("parquet").option("path", str(Path(folder) / "out"))
    written = written.option("checkpointLocation", str(Path(folder) / "checkpoint"))
    if to_the_end:
        written = written.trigger(availableNow=True)
    written.start().awaitTermination()


if __name__ == "__main__":
    main()
