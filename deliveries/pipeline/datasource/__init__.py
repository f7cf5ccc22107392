"""The Spark data source `pushhub`: archived messages as a table or a stream, and a sink that publishes.

    from deliveries.pipeline.datasource import register

    register(spark)
    spark.read.format("pushhub").option("topic", "projects/shop/topics/orders").load("s3://bucket/archive")

It reads the archive's files and nothing else, so reading takes no PushHub that runs and no Django.
"""

from __future__ import annotations

from deliveries.pipeline.datasource.source import PushHubDataSource, register

__all__ = ["PushHubDataSource", "register"]
