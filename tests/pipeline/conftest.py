"""One Spark session for all tests of the pipeline; without Java they are skipped, which CI does not allow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from deliveries.pipeline import needs
from deliveries.pipeline.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small local session."""
    if missing := needs.missing():
        pytest.skip(missing)
    from pyspark.java_gateway import ensure_callback_server_started

    quick = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
    # A task's process keeps the settings that it took on, and each test has a service of its own.
    quick["spark.python.worker.reuse"] = "false"
    quick["spark.python.daemon.module"] = "tests.pipeline.daemon"
    session = spark_session("pushhub tests", master="local[2]", memory="512m", extra=quick, short=True)
    # The first query that calls Python would start it, in the middle of a test.
    ensure_callback_server_started(session.sparkContext._gateway)
    yield session
    session.stop()
