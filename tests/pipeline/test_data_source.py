"""`format("pushhub")` in a Spark session: a table, a stream and a sink, each of which has every message once."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deliveries.models import Message, PublishJob
from deliveries.pipeline.archiving.archive import GRACE, Archiver
from deliveries.pipeline.archiving.files import adopt, verify
from deliveries.pipeline.datasource import register
from deliveries.pipeline.service import Service
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.clock import utcnow
from subscriptions.selectors import get_topic
from subscriptions.services.topics import create_topic
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


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().toString())


@pytest.mark.parametrize("batch_rows", [4, 100], ids=["a step in a batch", "all steps in a batch"])
def test_a_stream_is_published_once_despite_compactions_and_restarts(
    spark: SparkSession, tmp_path: Path, batch_rows: int
) -> None:
    """Given a stream from an archive to a topic that died between its sink's commit and its own, when the archive is
    compacted and the stream is started again, then the topic has each message once.
    """
    root, checkpoint = str(tmp_path / "archive"), tmp_path / "checkpoint"
    publish(range(4))
    archiver = Archiver(root, session=spark)
    archiver.run()
    publish(range(4, 6))
    archiver.run()
    create_topic(name=COPY, topic={})
    register(spark, service=Service.here(journal=False))

    def run() -> None:
        messages = spark.readStream.format("pushhub").option("maxRowsPerBatch", batch_rows).load(root)
        copied = messages.where(f"topic = '{ORDERS}'").select("data", "attributes", "ordering_key")
        sink = copied.writeStream.format("pushhub").option("topic", COPY).trigger(availableNow=True)
        sink.option("checkpointLocation", str(checkpoint)).start().awaitTermination()

    # The partitions of a batch are published at the same time, so their order is open.
    in_order = list if batch_rows == 4 else sorted
    run()
    assert in_order(published(COPY)) == [str(number) for number in range(6)]
    # Spark notes a batch after the sink's commit. A kill between the two leaves no note.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (checkpoint / "commits" / f".{last.name}.crc").unlink(missing_ok=True)
    archiver.compact()
    publish(range(6, 7))
    archiver.run()
    run()
    assert in_order(published(COPY)) == [str(number) for number in range(7)]
    [job] = PublishJob.objects.all()
    assert (job.kind, job.finished_at is not None) == ("stream", True), "earlier batches are forgotten"


def test_a_frame_is_published_once_under_its_id_and_bad_rows_are_named(spark: SparkSession, tmp_path: Path) -> None:
    create_topic(name=ORDERS, topic={})
    service = Service.here(journal=False)
    register(spark, service=service)

    def save(frame: DataFrame, **options: Any) -> None:
        frame.write.format("pushhub").mode("append").options(topic=ORDERS, **options).save()

    frame = spark.range(0, 5, 1, 2).selectExpr("cast(string(id) as binary) AS data")
    save(frame, id="mine")
    save(frame, id="mine")
    assert sorted(published(ORDERS)) == [str(number) for number in range(5)]
    assert PublishJob.objects.get().finished_at is not None
    assert service.environ["PUSHHUB_SECRET_KEY"] not in plan_of(frame)

    with pytest.raises(Exception, match=r"row 2 of part 0 is refused: .*empty"):
        save(spark.createDataFrame([(b"x",), (b"",)], "data binary").coalesce(1))
    with pytest.raises(Exception, match="The column 'body' is not part of a message"):
        save(frame.selectExpr("data", "1 AS body"))
    with pytest.raises(Exception, match="Resource not found"):
        frame.write.format("pushhub").mode("append").options(topic=COPY).save()
    with pytest.raises(Exception, match="A topic cannot be overwritten"):
        frame.write.format("pushhub").mode("overwrite").options(topic=ORDERS).save()
