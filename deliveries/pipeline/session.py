"""The Spark session of a pipeline command: small, on loopback, on a cluster by one setting."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The folder that holds our packages, for executors that start elsewhere.
ROOT = Path(__file__).resolve().parents[2]
#: In a job of seconds the second compiler costs more than it gains (docs/design.md#spark-session). Long jobs use it.
SHORT_JOB = "-XX:TieredStopAtLevel=1"
COLLECTOR = "-XX:+UseSerialGC"
#: The first of the masters of a standalone cluster.
STANDALONE = re.compile(r"spark://(?P<host>\[[^]]+\]|[^:,]+):(?P<port>[0-9]+)")


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
    for key, value in {**settings(memory=memory, short=short), **driver_address(master), **(extra or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def driver_address(master: str) -> dict[str, str]:
    """Where the driver listens for its executors: loopback for those of this machine, else where it reaches the master.

    A resource manager such as Kubernetes has no address to ask about, so there Spark decides.
    """
    if master.startswith("local"):
        address = "127.0.0.1"
    elif found := STANDALONE.match(master):
        address = _address_towards(found["host"].strip("[]"), int(found["port"]))
    else:
        return {}
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def _address_towards(host: str, port: int) -> str:
    """The address of this machine from which packets to another leave. Nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidArgument(f"The Spark master {host} cannot be reached: {error.strerror}.") from None


def settings(*, memory: str, short: bool) -> dict[str, str]:
    """What was measured to be light, and is safe: no web interface and no catalogue on disk."""
    options = " ".join([COLLECTOR, SHORT_JOB] if short else [COLLECTOR])
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.runSQLOnFiles": "false",
        "spark.speculation": "false",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        # Hadoop sets the modes of what it writes by itself, from a umask of its own (022 by default).
        "spark.hadoop.fs.permissions.umask-mode": "077",
    }
