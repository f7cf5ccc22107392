"""The Spark data source `pushhub`: a subscription or an archive as a stream or a table, and a sink that publishes.

    from deliveries.pipeline.datasource import register

    register(spark)
    spark.readStream.format("pushhub").option("subscription", "projects/shop/subscriptions/worker").load()
    spark.read.format("pushhub").option("archive", "s3://bucket/archive").load()
    read_archive(spark, ".pushhub/archive", topic="projects/shop/topics/orders")

A subscription needs the API alone, and an archive its files alone; neither needs Django.
"""

from __future__ import annotations

from deliveries.pipeline.datasource.parquet import read_archive
from deliveries.pipeline.datasource.source import PushHubDataSource, register

__all__ = ["PushHubDataSource", "read_archive", "register"]
