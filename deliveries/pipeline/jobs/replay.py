"""Replay publishes messages of the archive again, to a topic or to one of its subscriptions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deliveries.models import PublishJob, PublishPart
from deliveries.pipeline.archiving.files import require_listing
from deliveries.pipeline.jobs.filters import check_filter, filter_column
from deliveries.pipeline.publishing.parts import part_of_key, parts_for
from deliveries.pipeline.publishing.publishjobs import Target, begin_job
from pushhub.common.errors import FailedPrecondition, InvalidArgument
from pushhub.common.stores import Store
from subscriptions.selectors import get_subscription, get_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("message_id", "publish_time", "data", "attributes", "ordering_key")
LAST_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ReplaySpec:
    """Which messages to publish again, and where: to a topic or to one subscription, exactly one of the two."""

    topic: str
    subscription: str
    since: datetime
    until: datetime
    filter: str

    @classmethod
    def of(cls, job: PublishJob) -> ReplaySpec:
        row = job.spec
        since, until = datetime.fromisoformat(row["from"]), datetime.fromisoformat(row["to"])
        return cls(row["topic"], row["subscription"], since, until, row["filter"])

    def check(self) -> None:
        """Raise InvalidArgument for a wrong time or filter."""
        if self.since >= self.until:
            raise InvalidArgument("The time to replay ends before it begins.", field="to")
        check_filter(self.filter)

    def row(self) -> dict[str, str]:
        since, until = self.since.astimezone(UTC).isoformat(), self.until.astimezone(UTC).isoformat()
        target = {"topic": self.topic, "subscription": self.subscription}
        return {**target, "from": since, "to": until, "filter": self.filter}

    def target(self, *, rate: int = 0) -> Target:
        """Return who gets the messages. Raises NotFound or FailedPrecondition if there is no such topic any more."""
        if self.topic:
            return Target(get_topic(name=self.topic, field="topic"), rate=rate)
        subscription = get_subscription(name=self.subscription)
        if subscription.topic is None or subscription.detached:
            raise FailedPrecondition(f"{subscription.name} has no topic any more.")
        return Target(subscription.topic, subscription.pk, rate)


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be published."""

    messages: int
    bytes: int
    first: datetime | None
    last: datetime | None
    #: Whether any message has an ordering key, so that those of a key must be published in order.
    ordered: bool


def begin_replay(spec: ReplaySpec, *, job_id: str = "") -> PublishJob:
    """Return the job of a replay, new or as it was left. Refuses what cannot be replayed before it creates a job."""
    spec.check()
    spec.target()
    row = spec.row()
    short = (spec.topic or spec.subscription).rpartition("/")[2][:60]
    digest = sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:12]
    return begin_job(job_id=job_id or f"replay {short} {digest}", kind="replay", spec=row)


def chosen(session: SparkSession, spec: ReplaySpec, *, root: str | Path) -> DataFrame:
    """Return the archived messages of a topic, published from `since` to before `until`, that pass the filter."""
    from pyspark.sql import functions as f

    from deliveries.pipeline.datasource import register
    from deliveries.pipeline.datasource.options import Selection

    topic = spec.target().topic.name
    # Ids and publish times have milliseconds.
    early, late = (
        moment.astimezone(UTC).replace(microsecond=moment.microsecond // 1000 * 1000)
        for moment in (spec.since, spec.until)
    )
    store = Store(root)
    require_listing(store)
    selection = Selection(store.address, COLUMNS, topic, early, late)
    if not selection.files():
        raise FailedPrecondition("The archive has no messages of that time; `pipeline archive` fills it.")
    register(session)
    options = {"topic": topic, "from": early.isoformat(), "to": late.isoformat(), "columns": ",".join(COLUMNS)}
    messages = session.read.format("pushhub").options(**options).load(store.address)
    return messages.withColumn("id", f.col("message_id").cast("long")).where(filter_column(spec.filter))


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
    """Return what is left of a job as the frame that `run_job` takes; None for a job without messages.

    It has a partition per part, or a single one if `in_order`. Each has its messages in the order of their publishes.
    """
    from pyspark.sql import functions as f

    parts = list(PublishPart.objects.filter(job=job).order_by("number"))
    if not parts:
        return None
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
