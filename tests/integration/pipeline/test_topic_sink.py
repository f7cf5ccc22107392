"""Spark's sink and source without Java: what a task publishes, and the credentials with which both call the API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pytest_django.live_server_helper import LiveServer

pytest.importorskip("pyspark")
from pyspark.sql import Row
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from deliveries.models import Message
from deliveries.pipeline.datasource import writer
from deliveries.pipeline.datasource.source import PushHubDataSource
from deliveries.pipeline.datasource.writer import StreamPublisher
from pushhub.common.errors import InvalidArgument
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity.access_tokens import create_access_token
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.certificates import Authority
from tests.grpcservers import GrpcServer
from tests.integration.identity.keyfiles import EMAIL, key_file
from tests.ports import free_port

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
TEXT = StringType()
FIELDS = {"data": BinaryType(), "attributes": MapType(TEXT, TEXT), "ordering_key": TEXT}
SCHEMA = StructType([StructField(name, kind) for name, kind in FIELDS.items()])


def source(**options: str) -> PushHubDataSource:
    return PushHubDataSource(CaseInsensitiveDict({"topic": TOPIC} | options))


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    text = pa.string()
    schema = pa.schema([("data", pa.binary()), ("attributes", pa.map_(text, text)), ("ordering_key", text)])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)


def published() -> list[tuple[bytes, dict[str, str], str]]:
    return [
        (bytes(row.data), json.loads(row.attributes or "{}"), row.ordering_key)
        for row in Message.objects.order_by("pk")
    ]


def test_a_task_publishes_the_rows_of_each_ordering_key_in_their_order(
    server: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "REQUEST_BYTES", 200)
    create_topic(name=TOPIC, topic={})
    rows = [{"data": b"%d" % n * 40, "attributes": [("n", str(n))], "ordering_key": f"k{n % 2}"} for n in range(20)]
    nulls = {"data": None, "attributes": [("n", "20"), ("none", None)], "ordering_key": None}
    source().writer(SCHEMA, False).write(iter([batch(*rows), batch(), batch(nulls)]))
    for key in ("k0", "k1"):
        expected = [(row["data"], dict(row["attributes"])) for row in rows if row["ordering_key"] == key]
        assert [(data, attributes) for data, attributes, its in published() if its == key] == expected
    assert published()[-1] == (b"", {"n": "20"}, "")


def test_a_row_that_is_refused_is_named_and_those_before_it_are_published(server: GrpcServer) -> None:
    create_topic(name=TOPIC, topic={})
    with pytest.raises(RuntimeError, match="row 3 of a partition is refused: .*empty"):
        source().writer(SCHEMA, False).write(iter([batch({"data": b"a"}, {"data": b"b"}, {"data": b""})]))
    assert [data for data, _, _ in published()] == [b"a", b"b"]


def test_a_stream_is_published_where_spark_gives_rows(server: GrpcServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a Spark 4.0, which has no Arrow writer for streams, then the sink takes its rows."""
    monkeypatch.setattr(writer, "HAS_ARROW", False)
    create_topic(name=TOPIC, topic={})
    sink = source().streamWriter(SCHEMA, False)
    assert isinstance(sink, StreamPublisher)
    sink.write(iter([Row(data=bytearray(b"a"), attributes={"n": "1", "none": None}, ordering_key=None)]))
    assert published() == [(b"a", {"n": "1"}, "")]


def test_a_request_is_repeated_until_pushhub_is_there(
    redis_url: str, transactional_db: None, live_server: LiveServer
) -> None:
    create_topic(name=TOPIC, topic={})
    address = f"127.0.0.1:{free_port()}"
    script = f"import sys; {SOURCES}; write({{'emulatorHost': sys.argv[1]}}, b'x')"
    process = subprocess.Popen([sys.executable, "-c", script, address], stderr=subprocess.PIPE, text=True)
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_GRPC=address):
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")
    assert published() == [(b"x", {}, "")]


SOURCES = "from tests.integration.pipeline.sources import read, write"


@pytest.mark.parametrize("kind", ["credentialsFile", "tokenFile"])
def test_credentials_are_a_key_file_or_a_token_over_tls(
    transactional_db: None, redis_url: str, live_server: LiveServer, tmp_path: Path, kind: str
) -> None:
    """Given a server that takes no anonymous calls, then a task publishes and the driver pulls with the credentials.
    If they lack a right, the error says so.
    """
    authority = Authority(tmp_path)
    create_topic(name=TOPIC, topic={})
    create_subscription(name=WORKER, subscription={"topic": TOPIC})
    key, member = key_file(), f"serviceAccount:{EMAIL}"
    secret = create_access_token(member=member).token if kind == "tokenFile" else json.dumps(key)
    (tmp_path / "secret").write_text(secret + "\n")
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member=member)
    grants.grant_role(get_resource(WORKER), role="roles/pubsub.subscriber", member=member)
    chain = str(authority.chain("localhost"))
    tls = {"PUSHHUB_GRPC_TLS_CERT": chain, "PUSHHUB_GRPC_TLS_KEY": chain}
    environment = os.environ | {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authority.ca_file)}
    environment.pop("PUBSUB_EMULATOR_HOST", None)
    script = f"""
import sys
{SOURCES}
options = {{"endpoint": sys.argv[1], "{kind}": sys.argv[2]}}
write(options, b"over TLS")
print(*read(options))
try:
    write(options | {{"topic": "projects/other/topics/orders"}}, b"x")
except Exception as error:
    print(str(error).splitlines()[0])
"""
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_ANONYMOUS="", PUSHHUB_DEVELOPMENT="0", **tls) as server:
        address = server.address.replace("127.0.0.1", "localhost")
        command = [sys.executable, "-W", "ignore", "-c", script, address, str(tmp_path / "secret")]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    text, error = process.stdout.splitlines()
    assert text == "b'over TLS'"
    assert error.startswith("403 Permission 'pubsub.topics.publish' denied")


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({"topic": ""}, SCHEMA, "Give the topic"),
        ({"topic": "orders"}, SCHEMA, "orders"),
        ({"id": "mine"}, SCHEMA, "no option 'id'"),
        ({}, StructType(SCHEMA.fields[1:]), "no column 'data'"),
        ({}, StructType([*SCHEMA.fields, StructField("body", TEXT)]), "'body' is not part of a message"),
        ({}, StructType([StructField("data", LongType())]), "'data' must be binary or string, not bigint"),
    ],
    ids=lambda value: "",
)
def test_a_wrong_option_or_column_is_named(
    options: dict[str, str], schema: StructType, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match=words):
        source(**options).writer(schema, False)
