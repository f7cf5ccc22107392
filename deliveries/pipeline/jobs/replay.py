"""Replay publishes messages of the archive again, to a topic or to one of its subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deliveries.models import PublishJob, PublishPart
from deliveries.pipeline.archiving.files import require_listing
from deliveries.pipeline.jobs.filters import filter_column
from deliveries.pipeline.publishing.parts import part_of_key, parts_for
from deliveries.rules.ids import first_id_at
from pushhub.common.errors import FailedPrecondition
from pushhub.common.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("message_id", "publish_time", "data", "attributes", "ordering_key")
LAST_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be published."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    #: Whether any message has an ordering key, so that those of a key must be published in order.
    ordered: bool


def chosen(
    session: SparkSession, *, root: str | Path, topic: str, since: datetime, until: datetime, filter: str
) -> DataFrame:
    """Return the archived messages of a topic, published from `since` to before `until`, that pass the filter."""
    from pyspark.sql import functions as f

    from deliveries.pipeline.datasource import register
    from deliveries.pipeline.datasource.options import Selection

    # Ids and publish times have milliseconds.
    early, late = (
        moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000) for moment in (since, until)
    )
    store = Store(root)
    require_listing(store)
    selection = Selection(store.address, COLUMNS, topic, early, late)
    if not selection.files():
        raise FailedPrecondition("The archive has no messages of that time; `pipeline archive` fills it.")
    register(session)
    options = {"topic": topic, "from": early.isoformat(), "to": late.isoformat(), "columns": ",".join(COLUMNS)}
    messages = session.read.format("pushhub").options(**options).load(store.address)
    identified = messages.withColumn("id", f.col("message_id").cast("long"))
    in_time = (f.col("id") >= _first_id(since)) & (f.col("id") < _first_id(until))
    return identified.where(in_time & filter_column(filter))


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


def divided(messages: DataFrame, plan: Plan) -> list[tuple[int, int | None]]:
    """Divide messages into parts of about the same size: each is the id before its messages and its last id.

    With ordering keys, a part has some of the keys, and no last id.
    """
    from pyspark.sql import functions as f

    parts = parts_for(plan.messages)
    if not parts or plan.ordered:
        return [(0, None)] * parts
    # A double cannot tell neighbouring ids apart, which does no harm: an edge may lie anywhere.
    ids = messages.select(f.col("id").cast("double").alias("id"))
    edges = ids.approxQuantile("id", [part / parts for part in range(1, parts)], 1 / (20 * parts)) if parts > 1 else []
    return list(pairwise([0, *sorted({int(edge) for edge in edges}), LAST_ID]))


def has_spans(job: PublishJob) -> bool:
    """Return whether the parts of a job are spans of ids, and not of ordering keys."""
    return PublishPart.objects.filter(job=job).exclude(until=None).exists()


def frame_of(messages: DataFrame, job: PublishJob, *, in_order: bool) -> DataFrame | None:
    """Return what is left of a job as the frame that `run_job` takes; None for a job without messages."""
    parts = list(PublishPart.objects.filter(job=job).order_by("number"))
    return parted(messages, parts, in_order=in_order) if parts else None


def parted(messages: DataFrame, parts: Sequence[PublishPart], *, in_order: bool) -> DataFrame:
    """Return what is left of the parts of a job, in one frame: a partition per part, or a single one if `in_order`.

    `parts` are all parts of the job. The messages of each are in the order in which they were published.
    """
    from pyspark.sql import functions as f

    # Messages up to the position are published, and all of a finished part.
    positions = f.array(*[f.lit(LAST_ID if part.finished else part.position) for part in parts])
    if parts[0].until is None:
        number = part_of_key(f.col("ordering_key"), f.col("id"), parts=len(parts))
    else:
        edges = f.array(*[f.lit(part.until) for part in parts])
        number = f.size(f.filter(edges, lambda edge: edge < f.col("id")))
    numbered = messages.withColumn("part", number)
    left = numbered.where(f.col("id") > f.element_at(positions, f.col("part") + 1))
    rows = left.select("part", f.col("id").alias("position"), "data", "attributes", "ordering_key")
    placed = rows.coalesce(1) if in_order else rows.repartitionById(len(parts), "part")
    return placed.sortWithinPartitions("position")


def _first_id(moment: datetime) -> int:
    """Return the first id of a time. The range of ids ends in the year 2089."""
    return min(first_id_at(int(moment.timestamp() * 1000)), LAST_ID)
