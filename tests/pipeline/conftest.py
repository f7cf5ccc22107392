"""The Spark session that all tests of the pipeline share. Without Java they are skipped, which fails in CI."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command

from deliveries.pipeline import needs
from deliveries.pipeline.service import Service
from deliveries.pipeline.session import spark_session
from pushhub.common import stores
from tests.objectstores import BUCKET, STORES, ObjectStore
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., str]


@pytest.fixture(scope="session")
def store_ports() -> dict[ObjectStore, int]:
    """The port at which the session's tasks expect each object store; a test that needs one starts its server there."""
    return {kind: free_port() for kind in STORES}


@pytest.fixture(scope="session")
def needs_spark() -> None:
    """Skip the tests that start Spark in processes of their own where PySpark or Java is missing."""
    if missing := needs.missing():
        pytest.skip(missing)


@pytest.fixture(scope="session")
def spark(
    needs_spark: None, store_ports: dict[ObjectStore, int], django_db_setup: None, redis_server: str
) -> Iterator[SparkSession]:
    """A small local session. All tests of this process have the same database and Redis, and so have its tasks."""
    from pyspark.java_gateway import ensure_callback_server_started

    quick = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
    # A Python worker keeps what it has read of the database, which each test empties.
    quick["spark.python.worker.reuse"] = "false"
    quick["spark.python.daemon.module"] = "tests.pipeline.daemon"
    # Spark's Python processes inherit the environment in which Java was started.
    environment = {**Service.here(journal=False).environ, "PUSHHUB_REDIS_URL": redis_server}
    for kind, port in store_ports.items():
        environment |= kind.environment(port)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        session = spark_session("pushhub tests", master="local[2]", memory="512m", extra=quick, short=True)
    # Otherwise the first query that calls back into Python starts this server, in the middle of a test.
    ensure_callback_server_started(session.sparkContext._gateway)
    yield session
    session.stop()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command of the pipeline, and return what it prints."""

    def run_words(*words: str) -> str:
        capsys.readouterr()
        call_command("pipeline", *words)
        return capsys.readouterr().out

    return run_words


@pytest.fixture(params=STORES, ids=lambda kind: kind.scheme)
def bucket(
    request: pytest.FixtureRequest, store_ports: dict[ObjectStore, int], monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The address of an empty bucket, which this process and the session's tasks can reach."""
    kind: ObjectStore = request.param
    port = store_ports[kind]
    for name, value in kind.environment(port).items():
        monkeypatch.setenv(name, value)
    stores._filesystem.cache_clear()
    with kind.server(port):
        yield f"{kind.scheme}://{BUCKET}"
    stores._filesystem.cache_clear()
