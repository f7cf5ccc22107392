"""`format("pushhub")` in a Spark session: an archive as a table and as a stream, and the sink."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deliveries.models import Message
from deliveries.pipeline.archiving.archive import GRACE, Archiver
from deliveries.pipeline.archiving.files import adopt, verify
from deliveries.pipeline.datasource import read_archive, register
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.clock import utcnow
from subscriptions.selectors import get_topic
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.objectstores import SECRET

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("spark", "redis_url")]

ORDERS = "projects/shop/topics/orders"
COPY = "projects/shop/topics/copy"


def publish(numbers: range) -> list[str]:
    if not numbers.start:
        create_topic(name=ORDERS, topic={})
    messages = [NewMessage(str(number).encode(), {"n": str(number)}, "k") for number in numbers]
    return publish_message(topic=get_topic(name=ORDERS), messages=messages)


def published(topic: str) -> list[str]:
    return [bytes(row.data).decode() for row in Message.objects.filter(topic=get_topic(name=topic)).order_by("pk")]


def test_an_archive_in_a_bucket_is_written_compacted_and_read(spark: SparkSession, bucket: str) -> None:
    """Given an archive in a bucket, when it has been compacted and swept, then Spark reads each message once."""
    root = f"{bucket}/archive"
    ids = publish(range(20))
    Archiver(root, session=spark).run()
    ids += publish(range(20, 30))
    archiver = Archiver(root, session=spark, clock=lambda: utcnow() + GRACE + timedelta(seconds=1))
    assert archiver.run().messages == 10
    assert archiver.compact() == 1
    assert Archiver(root, session=spark, clock=lambda: utcnow() + 3 * GRACE).sweep() > 1
    assert verify(root).unknown == []
    assert adopt(root).added == []

    register(spark)
    frame = spark.read.format("pushhub").option("topic", ORDERS).load(root)
    chosen = frame.where("message_id > '" + ids[4] + "'").select("message_id", "attributes")
    rows = sorted(chosen.collect())
    assert [(row.message_id, row.attributes) for row in rows] == [
        (message_id, {"n": str(number)}) for number, message_id in enumerate(ids) if number > 4
    ]
    assert SECRET not in plan_of(chosen)


def test_an_archive_is_read_by_sparks_own_reader_with_pruned_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Given an archive, then Spark reads only the columns and days of a query, and what the data source reads."""
    root = str(tmp_path / "archive")
    archived = read_archive(spark, root)
    assert archived.count() == 0
    ids = publish(range(6))
    Archiver(root, session=spark).run()
    register(spark)
    archived = read_archive(spark, root, topic=ORDERS)
    source = spark.read.format("pushhub").option("archive", root).load()
    assert archived.dtypes == source.dtypes
    assert sorted(archived.drop("attributes").collect()) == sorted(source.drop("attributes").collect())
    chosen = archived.where(f"message_id > '{ids[1]}'").select("message_id")
    assert sorted(row.message_id for row in chosen.collect()) == ids[2:]
    columns = plan_of(chosen).rpartition("ReadSchema: ")[2].partition(">")[0]
    assert (columns.count(":"), "data" in columns) == (2, False), "the topic and the id"
    assert read_archive(spark, root, topic=COPY).count() == 0
    hour = timedelta(hours=1)
    assert read_archive(spark, root, since=utcnow() - hour, until=utcnow() + hour).count() == 6
    assert read_archive(spark, root, since=utcnow() + hour).count() == 0
    assert read_archive(spark, root, until=utcnow() - hour).count() == 0


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


@pytest.mark.parametrize("batch_rows", [4, 100], ids=["a step in a batch", "all steps in a batch"])
def test_a_stream_is_published_despite_compactions_and_restarts(
    spark: SparkSession, server: GrpcServer, tmp_path: Path, batch_rows: int
) -> None:
    """Given a stream from an archive to a topic that died between its sink's commit and its own, when the archive is
    compacted and the stream is started again, then the topic has each message, and only those of the last batch twice.
    """
    root, checkpoint = str(tmp_path / "archive"), tmp_path / "checkpoint"
    publish(range(4))
    archiver = Archiver(root, session=spark)
    archiver.run()
    publish(range(4, 6))
    archiver.run()
    create_topic(name=COPY, topic={})
    register(spark)

    def run() -> None:
        messages = spark.readStream.format("pushhub").option("maxRowsPerBatch", batch_rows).load(root)
        copied = messages.where(f"topic = '{ORDERS}'").select("data", "attributes", "ordering_key")
        options = {"topic": COPY, "emulatorHost": server.address, "checkpointLocation": str(checkpoint)}
        sink = copied.writeStream.format("pushhub").options(**options)
        sink.trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(published(COPY)) == [str(number) for number in range(6)]
    # Spark notes a batch after the sink's commit. A kill between the two leaves no note.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    archiver.compact()
    publish(range(6, 7))
    archiver.run()
    run()
    repeated = range(4, 6) if batch_rows == 4 else range(6)
    assert sorted(published(COPY)) == sorted(str(number) for number in [*range(7), *repeated])


def test_a_frame_is_published_in_order_and_bad_rows_are_named(spark: SparkSession, server: GrpcServer) -> None:
    create_topic(name=ORDERS, topic={})
    register(spark)

    def save(frame: DataFrame, *, topic: str = ORDERS, mode: str = "append") -> None:
        options = {"topic": topic, "emulatorHost": server.address}
        frame.write.format("pushhub").mode(mode).options(**options).save()

    numbers = spark.range(0, 2500, 1, 1)
    save(
        numbers.selectExpr("string(id) AS data", "map('n', string(id), 'none', NULL) AS attributes", "'k' ordering_key")
    )
    assert published(ORDERS) == [str(number) for number in range(2500)]
    last = Message.objects.last()
    assert last is not None
    assert (json.loads(last.attributes), last.ordering_key) == ({"n": "2499"}, "k")

    with pytest.raises(Exception, match=r"row 2 of a partition is refused: .*empty"):
        save(spark.createDataFrame([(b"x",), (b"",)], "data binary").coalesce(1))
    assert published(ORDERS)[-1] == "x"
    with pytest.raises(Exception, match="The column 'body' is not part of a message"):
        save(numbers.selectExpr("string(id) AS data", "1 AS body"))
    with pytest.raises(Exception, match=r"Resource not found \(resource=copy\)"):
        save(numbers.selectExpr("string(id) AS data"), topic=COPY)
    with pytest.raises(Exception, match="A topic cannot be overwritten"):
        save(numbers.selectExpr("string(id) AS data"), mode="overwrite")
