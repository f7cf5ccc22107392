"""The Spark session of a pipeline command: small and on loopback, or on a cluster."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings as django_settings

from deliveries.pipeline import classarchive
from deliveries.pipeline.starting import spark_starting
from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The folder with PushHub's packages, for executors that start elsewhere.
ROOT = Path(__file__).resolve().parents[2]
#: The folder with the module that Spark's Python processes import first.
WORKERS = Path(__file__).resolve().parent / "workers"
#: In a job of seconds the second compiler costs more than it gains (docs/pipeline-design.md#the-spark-session). Long
#: jobs use it.
SHORT_JOB = "-XX:TieredStopAtLevel=1"
COLLECTOR = "-XX:+UseSerialGC"
#: What Spark logs, unless the user has a folder with settings for Spark. A folder of ours with this file would be on
#: Java's class path, and Java uses no archive of classes where that has a folder with files.
LOGGING = Path(__file__).resolve().parent / "log4j2.properties"
SECRET_SETTING = "spark.authenticate.secret"  # noqa: S105 - a name
#: The most bytes that Java and Python exchange at a time.
BATCH_BYTES = 16 * 2**20
#: A master in the driver's own process.
LOCAL = re.compile(r"local(\[([0-9]+|\*)(,[0-9]+)?\])?")
#: Matches the first master in the address of a standalone cluster.
STANDALONE = re.compile(r"spark://(?P<host>\[[^]]+\]|[^:,]+):(?P<port>[0-9]+)")


def spark_session(
    name: str, *, master: str, memory: str = "512m", extra: Mapping[str, str] | None = None, short: bool = False
) -> SparkSession:
    """Start a session, or return the running one.

    `master` has Spark's form (`local[2]`, `spark://host:7077`). `memory` is the heap of the driver. `extra` has
    settings of Spark that override these. Raises FailedPrecondition, with one line, if Spark does not start.
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Otherwise glibc keeps a heap for each of Java's threads, which takes some hundred megabytes.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    builder = SparkSession.builder.appName(name).master(master)
    conf = {**settings(memory=memory, short=short), **driver_address(master)}
    if LOCAL.fullmatch(master):
        # Other users of the machine reach its ports, and could send it any object of Java. Spark draws a secret itself.
        conf["spark.authenticate"] = "true"
    conf |= extra or {}
    if SECRET_SETTING in conf:
        # Everybody on this machine sees the arguments of Java. The environment goes before them, and Spark wants both.
        os.environ["_SPARK_AUTH_SECRET"] = conf[SECRET_SETTING]
        conf[SECRET_SETTING] = "in the environment"
    for key, value in conf.items():
        builder = builder.config(key, value)
    with spark_starting():
        return builder.getOrCreate()


def command_session(name: str, *, short: bool = False) -> SparkSession:
    """Start the session of a command, as the settings say."""
    return spark_session(
        f"pushhub {name}",
        master=django_settings.SPARK_MASTER,
        memory=django_settings.SPARK_MEMORY,
        extra=django_settings.SPARK_CONF,
        short=short,
    )


def driver_address(master: str) -> dict[str, str]:
    """Return where the driver listens for its executors: on loopback, or on its address towards the master.

    The address of a resource manager such as Kubernetes is not known, so there Spark decides.
    """
    if master.startswith("local"):
        address = "127.0.0.1"
    elif match := STANDALONE.match(master):
        address = _address_towards(match["host"].strip("[]"), int(match["port"]))
    else:
        return {}
    return {"spark.driver.host": address, "spark.driver.bindAddress": address}


def _address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which packets to a host are sent. Sends none."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidArgument(f"The Spark master {host} cannot be reached: {error.strerror}.") from None


def settings(*, memory: str, short: bool) -> dict[str, str]:
    """Return settings that keep Spark small and safe: no web interface and no catalogue on the disk."""
    logging = [] if os.environ.get("SPARK_CONF_DIR") else [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    archived = classarchive.options()
    return {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join([COLLECTOR, SHORT_JOB] if short else [COLLECTOR]),
        # These stay if the user replaces the ones above.
        "spark.driver.defaultJavaOptions": " ".join(f'"{word}"' for word in [*archived, *logging]),
        # Executors on a cluster start from PushHub's image, which has the same archive of classes.
        "spark.executor.defaultJavaOptions": " ".join(f'"{word}"' for word in archived),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.runSQLOnFiles": "false",
        "spark.speculation": "false",
        # The default, INT96, has no statistics.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # A message may have 10 MB, so batches to Python and back are bounded by bytes, and not by rows alone.
        "spark.sql.execution.arrow.maxBytesPerBatch": str(BATCH_BYTES),
        "spark.executorEnv.PYTHONPATH": f"{WORKERS}{os.pathsep}{ROOT}",
        # Hadoop sets the modes of its files from a umask of its own (022 by default).
        "spark.hadoop.fs.permissions.umask-mode": "077",
    }
