"""The Spark data source: messages that Spark reads a second, of the archive and of a subscription, once Java runs."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc

from bench.archive import spark
from bench.message import TOPIC
from bench.processes import BenchError, process, say, wait_until
from bench.stand import Row, stand, subscription
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.archiving.manifest import read_manifest
from deliveries.pipeline.datasource import read_archive, register
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.stores import Store
from subscriptions.selectors import get_topic
from tests.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How often each query is timed by either reader.
TURNS = 5


def data_source(quick: bool) -> Row:
    """Read an archive of messages of 1 KiB: by the data source, and by `read_archive` beside Spark's reader alone."""
    with _archived(2_000 if quick else 400_000, quick=quick) as (session, folder, count):
        whole, pruned = _source_rates(session, folder, count)
        return {
            "data_source_per_second": round(whole),
            "data_source_one_column_per_second": round(pruned),
        } | _ratios(session, folder, turns=1 if quick else TURNS)


def subscription_source(quick: bool) -> Row:
    """Read messages of 1 KiB from a subscription with the trigger availableNow, until the last is acknowledged."""
    count = 2_000 if quick else 60_000
    address = f"127.0.0.1:{free_port()}"
    with (
        spark(quick=quick) as session,
        stand() as stood,
        tempfile.TemporaryDirectory(prefix="pushhub-checkpoint-") as folder,
        process([sys.executable, "-m", "pushhub.runtime.grpcserver"], env=stood.env | {"PUSHHUB_GRPC": address}),
        grpc.insecure_channel(address) as channel,
    ):
        stood.subscribe("")
        grpc.channel_ready_future(channel).result(timeout=60)
        register(session)
        options = {"subscription": subscription("bench"), "emulatorHost": address}
        stream = session.readStream.format("pushhub").options(**options).load()
        seconds = 0.0
        # The first run is Java's and Python's start.
        for number in (count // 10, count):
            _publish(number)
            began = time.monotonic()
            written = stream.writeStream.format("noop").option("checkpointLocation", folder)
            query = written.trigger(availableNow=True).start()
            wait_until(lambda: not stood.left(), seconds=600, what="the last ack")
            seconds = time.monotonic() - began
            query.awaitTermination()
    say(f"  {count:,} messages of a subscription: {count / seconds:,.0f}/s")
    return {"subscription_source_per_second": round(count / seconds)}


def data_source_sizes(quick: bool) -> Row:
    """The same at 1, 4 and 16 times the data."""
    figures: Row = {}
    for count in (1_000,) if quick else (50_000, 200_000, 800_000):
        with _archived(count, quick=quick) as (session, folder, _):
            whole, _ = _source_rates(session, folder, count)
        figures[f"data_source_{count // 1000}k_per_second"] = round(whole)
    return figures


@contextmanager
def _archived(count: int, *, quick: bool) -> Iterator[tuple[SparkSession, str, int]]:
    """Yield a session and an archive of `count` messages."""
    with (
        spark(quick=quick) as session,
        stand() as stood,
        tempfile.TemporaryDirectory(prefix="pushhub-archive-") as folder,
    ):
        stood.subscribe("")
        _publish(count)
        Archiver(folder, session=session).run()
        register(session)
        yield session, folder, count


def _publish(count: int) -> None:
    topic = get_topic(name=TOPIC)
    for _ in range(count // 100):
        # Half of it does not compress.
        data = b'{"text": "' + os.urandom(507).hex().encode() + b'"}'
        publish_message(topic=topic, messages=[NewMessage(data, {}) for _ in range(100)])


def _source_rates(session: SparkSession, folder: str, count: int) -> tuple[float, float]:
    """Return how many of `count` messages are read a second: all columns, and one."""
    reader = session.read.format("pushhub")
    frame = reader.load(folder)
    if frame.count() != count:  # Java compiles
        raise BenchError("the data source lost messages, or has some twice")
    whole = count / _seconds(lambda: _read(frame))
    one = reader.schema("message_id string").load(folder)
    pruned = count / _seconds(lambda: _read(one))
    say(f"  {count:,} messages: all columns {whole:,.0f}/s, one column {pruned:,.0f}/s")
    return whole, pruned


def _ratios(session: SparkSession, folder: str, *, turns: int) -> Row:
    """Return the time of queries by `read_archive`, as a multiple of that of Spark's reader on the same files."""
    files = [f"{folder}/{file.path}" for file in read_manifest(Store(folder))]
    queries: dict[str, Callable[[DataFrame], Any]] = {
        "count": lambda frame: frame.count(),
        "one_column": lambda frame: _read(frame.select("message_id")),
        "bounds": lambda frame: frame.selectExpr("min(message_id)", "max(message_id)").collect(),
    }
    figures: Row = {}
    for name, query in queries.items():
        own, alone = [], []
        for _ in range(turns):  # the first is Java's compiler's
            own.append(_seconds(lambda query=query: query(read_archive(session, folder))))  # type: ignore[misc]
            alone.append(_seconds(lambda query=query: query(session.read.parquet(*files))))  # type: ignore[misc]
        figures[f"archive_{name}_ratio"] = round(min(own) / min(alone), 2)
    say(f"  times Spark's own reader: {figures}")
    return figures


def _read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _seconds(work: Callable[[], Any]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began
