"""`readStream.format("pushhub")` on a subscription in a Spark session: restarts, limits, and a repeated batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deliveries.models import Delivery
from deliveries.pipeline.datasource import register
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.lanes import end_leases

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

pytestmark = pytest.mark.usefixtures("spark")

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"


@pytest.fixture(autouse=True)
def subscription(server: GrpcServer) -> None:
    create_topic(name=TOPIC, topic={})
    create_subscription(name=WORKER, subscription={"topic": TOPIC})


def publish(numbers: range) -> None:
    messages = [NewMessage(str(number).encode(), {"parity": str(number % 2)}) for number in numbers]
    publish_message(topic=get_topic(name=TOPIC), messages=messages)


def stream(spark: SparkSession, server: GrpcServer, **options: Any) -> DataFrame:
    register(spark)
    options = {"subscription": WORKER, "emulatorHost": server.address, "idleSeconds": 2} | options
    return spark.readStream.format("pushhub").options(**options).load()


def to_files(frame: DataFrame, folder: Path) -> DataStreamWriter:
    texts = frame.selectExpr("string(data) AS text", "message_id")
    return (
        texts.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def texts_in(spark: SparkSession, folder: Path) -> list[int]:
    return sorted(int(row.text) for row in spark.read.parquet(str(folder / "out")).collect())


def test_available_now_reads_the_backlog_in_batches_and_acknowledges_all_of_it(
    spark: SparkSession, server: GrpcServer, tmp_path: Path
) -> None:
    publish(range(25))
    written = to_files(stream(spark, server, maxMessagesPerTrigger=10), tmp_path)

    def run() -> StreamingQuery:
        query = written.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    batches = [progress.numInputRows for progress in run().recentProgress]
    assert texts_in(spark, tmp_path) == list(range(25))
    assert (max(batches) <= 10, sum(batches)) == (True, 25)
    assert not Delivery.objects.exists()
    publish(range(25, 28))
    run()
    assert texts_in(spark, tmp_path) == list(range(28)), "from the checkpoint"
    assert not Delivery.objects.exists()


def test_a_batch_that_failed_after_its_sink_had_it_comes_again_and_nothing_is_lost(
    spark: SparkSession, server: GrpcServer, tmp_path: Path
) -> None:
    """Given a sink that failed when it had written a batch, when the query is started again from its checkpoint, then
    all messages arrive, and those of that batch twice, with the same ids.
    """
    publish(range(4))
    frame = stream(spark, server).selectExpr("string(data) AS text", "message_id")
    failures = [RuntimeError("the sink is away")]

    def append(batch: DataFrame, number: int) -> None:
        assert batch.count() == batch.count(), "each action reads the same messages"
        if not batch.isEmpty():
            batch.write.mode("append").parquet(str(tmp_path / "out"))
            if failures:
                raise failures.pop()

    def run() -> None:
        written = frame.writeStream.foreachBatch(append).option("checkpointLocation", str(tmp_path / "checkpoint"))
        written.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="the sink is away"):
        run()
    assert texts_in(spark, tmp_path) == [0, 1, 2, 3]
    assert Delivery.objects.count() == 4
    end_leases()
    publish(range(4, 6))
    run()
    assert texts_in(spark, tmp_path) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 5]
    assert spark.read.parquet(str(tmp_path / "out")).dropDuplicates(["message_id"]).count() == 6
    assert not Delivery.objects.exists()


def test_a_table_looks_at_a_subscription(spark: SparkSession, server: GrpcServer) -> None:
    register(spark)
    options = {"subscription": WORKER, "emulatorHost": server.address, "idleSeconds": "2"}
    frame = spark.read.format("pushhub").options(**options).load()
    assert frame.count() == 0
    publish(range(6))
    odd = frame.where("attributes['parity'] = '1'").selectExpr("string(data) AS text", "publish_time")
    rows = odd.collect()
    assert sorted(row.text for row in rows) == ["1", "3", "5"]
    assert all(row.publish_time.year > 2000 for row in rows)
    assert Delivery.objects.count() == 6
