"""Replay: messages of the archive, published once more to a topic or to one subscription of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
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
    """In the order in which they were published, from behind `after_id` on."""
    ordered = messages.where(messages["id"] > after_id).orderBy("id")
    for row in ordered.select("id", "data", "attributes", "ordering_key").toLocalIterator(prefetchPartitions=True):
        yield NewMessage(bytes(row.data or b""), dict(row.attributes or {}), row.ordering_key or ""), row.id


def _files(since: datetime, until: datetime) -> list[str]:
    rows = ArchiveFile.objects.filter(last_id__gte=first_id_at(_ms(since)), first_id__lt=first_id_at(_ms(until)))
    return list(rows.values_list("path", flat=True))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
