"""Replay: messages of the archive, published once more to a topic or to one subscription of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deliveries.models import ArchiveFile
from deliveries.pipeline.filters import filter_column
from deliveries.pipeline.publishjobs import Item
from deliveries.rules.ids import first_id_at
from deliveries.rules.payload import NewMessage
from pushhub.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


#: Messages that are held at a time.
WINDOW_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be published."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None


def chosen(
    session: SparkSession, *, root: Path, topic: str, since: datetime, until: datetime, filter: str
) -> DataFrame:
    """The archived messages of a topic, published from `since` to before `until`, that pass the filter."""
    from pyspark.sql import functions as f

    files = _files(since, until)
    if not files:
        raise FailedPrecondition("The archive has no messages of that time; `pipeline archive` fills it.")
    frame = session.read.option("basePath", f"file://{root.absolute()}").parquet(
        *[f"file://{(root / path).absolute()}" for path in files]
    )
    identified = frame.withColumn("id", f.col("message_id").cast("long"))
    in_time = (f.col("id") >= first_id_at(_ms(since))) & (f.col("id") < first_id_at(_ms(until)))
    return identified.where((f.col("topic") == topic) & in_time & filter_column(filter))


def plan(messages: DataFrame) -> Plan:
    from pyspark.sql import functions as f

    row: Any = messages.agg(
        f.count(f.lit(1)), f.coalesce(f.sum(f.length("data")), f.lit(0)), f.min("publish_time"), f.max("publish_time")
    ).first()
    return Plan(*row)


def items(messages: DataFrame, *, after_id: int) -> Iterator[Item]:
    """In the order in which they were published, from behind `after_id` on; a window of time after the other.

    A window comes over as Arrow, which is several times as fast as row by row, and is small enough to be held.
    """
    from pyspark.sql import functions as f

    left = messages.where(f.col("id") > after_id)
    time = f.unix_micros("publish_time")
    for begins, ends in _windows(left):
        window = left.where((time > begins) & (time <= ends)).orderBy("id")
        found = window.select("id", "data", "attributes", "ordering_key").toArrow()
        for batch in found.to_batches(max_chunksize=1000):
            columns = (batch.column(name).to_pylist() for name in ("id", "data", "attributes", "ordering_key"))
            for message_id, data, attributes, ordering_key in zip(*columns, strict=True):
                yield NewMessage(data or b"", dict(attributes or ()), ordering_key or ""), message_id


def _windows(messages: DataFrame) -> list[tuple[int, int]]:
    """Spans of time, from behind the first moment to the second, with about as many messages each."""
    from pyspark.sql import functions as f

    timed = messages.select(f.unix_micros("publish_time").cast("double").alias("time"))
    count = timed.count()
    if not count:
        return []
    parts = count // WINDOW_ROWS + 1
    # Microseconds since 1970 fit a double exactly.
    edges = timed.approxQuantile("time", [part / parts for part in range(1, parts + 1)], 1 / (20 * parts))
    bounds = [-1, *sorted({int(edge) for edge in edges[:-1]}), 1 << 62]
    return list(pairwise(bounds))


def _files(since: datetime, until: datetime) -> list[str]:
    rows = ArchiveFile.objects.filter(last_id__gte=first_id_at(_ms(since)), first_id__lt=first_id_at(_ms(until)))
    return list(rows.values_list("path", flat=True))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
