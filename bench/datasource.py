"""The Spark data source: messages of the archive that Spark reads a second, with Java's start left out."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

from bench.archive import spark
from bench.message import TOPIC
from bench.processes import BenchError, say
from bench.stand import Row, stand
from deliveries.pipeline.archiving.archive import Archiver
from deliveries.pipeline.datasource import register
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.selectors import get_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def data_source(quick: bool) -> Row:
    """Read an archive of messages of 1 KiB: all columns, and one."""
    whole, pruned = _measured(2_000 if quick else 400_000, quick=quick)
    return {"data_source_per_second": round(whole), "data_source_one_column_per_second": round(pruned)}


def data_source_sizes(quick: bool) -> Row:
    """The same at 1, 4 and 16 times the data."""
    figures: Row = {}
    for count in (1_000,) if quick else (50_000, 200_000, 800_000):
        whole, _ = _measured(count, quick=quick)
        figures[f"data_source_{count // 1000}k_per_second"] = round(whole)
    return figures


def _measured(count: int, *, quick: bool) -> tuple[float, float]:
    """Return how many of `count` messages are read a second: all columns, and one."""
    with (
        spark(quick=quick) as session,
        stand() as stood,
        tempfile.TemporaryDirectory(prefix="pushhub-archive-") as folder,
    ):
        stood.subscribe("")
        topic = get_topic(name=TOPIC)
        for _ in range(count // 1000):
            # Half of it does not compress.
            data = [b'{"text": "' + os.urandom(507).hex().encode() + b'"}' for _ in range(10)]
            publish_message(topic=topic, messages=[NewMessage(payload, {}) for payload in data for _ in range(100)])
        Archiver(folder, session=session).run()
        register(session)
        reader = session.read.format("pushhub")
        frame = reader.load(folder)
        if frame.count() != count:  # Java compiles
            raise BenchError("the data source lost messages, or has some twice")
        whole = _rate(frame, count)
        pruned = _rate(reader.schema("message_id string").load(folder), count)
    say(f"  {count:,} messages: all columns {whole:,.0f}/s, one column {pruned:,.0f}/s")
    return whole, pruned


def _rate(frame: DataFrame, count: int) -> float:
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return count / (time.monotonic() - began)
