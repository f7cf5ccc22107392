"""The Spark session of a pipeline command: small, on loopback, on a cluster by one setting."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The folder that holds our packages, for executors that start elsewhere.
ROOT = Path(__file__).resolve().parents[2]
#: For jobs of seconds the second compiler costs more than it brings (SPARK.md, section 2); long ones leave it on.
SHORT_JOB = "-XX:TieredStopAtLevel=1"
COLLECTOR = "-XX:+UseSerialGC"


def spark_session(
    name: str, *, master: str, memory: str = "512m", extra: Mapping[str, str] | None = None, short: bool = False
) -> SparkSession:
    """Start a session, or return the running one.

    `master` is Spark's own form (`local[2]`, `spark://host:7077`); `memory` is the driver's heap; `extra` are settings
    of Spark that win over ours.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "conf"))
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Without it glibc keeps a heap for each of Java's threads, which is worth some hundred megabytes.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**settings(memory=memory, short=short), **(extra or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def settings(*, memory: str, short: bool) -> dict[str, str]:
    """What SPARK.md found to be light and safe: no web interface, no catalogue on disk, nothing but loopback."""
    options = " ".join([COLLECTOR, SHORT_JOB] if short else [COLLECTOR])
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.runSQLOnFiles": "false",
        "spark.speculation": "false",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
