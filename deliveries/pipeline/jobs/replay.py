"""Replay: messages of the archive, published once more to a topic or to one subscription of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deliveries.models import ArchiveFile, PublishPart
from deliveries.pipeline.jobs.filters import filter_column
from deliveries.rules.ids import first_id_at
from pushhub.common.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Messages of one part, which a task sorts in memory.
PART_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be published."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    #: Whether some have an ordering key, so that they must go out in order.
    ordered: bool


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
        f.count(f.lit(1)),
        f.coalesce(f.sum(f.length("data")), f.lit(0)),
        f.min("publish_time"),
        f.max("publish_time"),
        f.coalesce(f.max(f.col("ordering_key") != ""), f.lit(False)),
    ).first()
    return Plan(*row)


def divided(messages: DataFrame) -> list[tuple[int, int | None]]:
    """Spans of ids, from behind the first to the second, with about as many messages each."""
    from pyspark.sql import functions as f

    ids = messages.select(f.col("id").cast("double").alias("id"))
    count = ids.count()
    if not count:
        return []
    parts = count // PART_ROWS + 1
    # A double cannot tell neighbours among ids, which does no harm to an edge.
    edges = ids.approxQuantile("id", [part / parts for part in range(1, parts)], 1 / (20 * parts)) if parts > 1 else []
    return list(pairwise([0, *sorted({int(edge) for edge in edges}), (1 << 63) - 1]))


def part_frame(messages: DataFrame, part: PublishPart) -> DataFrame:
    """What is left of a part, in the order in which it was published, for one task."""
    from pyspark.sql import functions as f

    span = messages.where((f.col("id") > part.position) & (f.col("id") <= f.lit(part.until)))
    columns = span.select(f.col("id").alias("position"), "data", "attributes", "ordering_key")
    return columns.coalesce(1).sortWithinPartitions("position")


def _files(since: datetime, until: datetime) -> list[str]:
    rows = ArchiveFile.objects.filter(last_id__gte=first_id_at(_ms(since)), first_id__lt=first_id_at(_ms(until)))
    return list(rows.values_list("path", flat=True))


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
