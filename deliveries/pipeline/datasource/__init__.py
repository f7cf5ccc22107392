"""The Spark data source `pushhub`: archived messages as a table or a stream, and a sink that publishes.

    from deliveries.pipeline.datasource import register

    register(spark)
    spark.read.format("pushhub").option("topic", "projects/shop/topics/orders").load("s3://bucket/archive")

Reading needs only the archive's files: neither a running PushHub nor Django.
"""

from __future__ import annotations

from deliveries.pipeline.datasource.source import PushHubDataSource, register

__all__ = ["PushHubDataSource", "register"]
