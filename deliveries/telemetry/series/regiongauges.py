"""Gauges by region: what waits and what is retained, of subscriptions, topics and snapshots, taken once a minute.

Messages are counted in an index, so counts are exact. Bytes are read from the rows of at most some thousand messages of
each range; for a longer range they are estimated from their mean.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime

from django.conf import settings
from django.db.models import Count, Min

from deliveries.models import RegionGaugeMinute, SnapshotMessage
from deliveries.rules.ids import age_seconds, first_id_at
from deliveries.store import lanerows, messagerows
from deliveries.store.lanerows import LaneCount
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.series.gauges import AFTERGLOW, ALL_UP_TO
from pushhub.common import names
from pushhub.common.clock import Clock, utcnow
from subscriptions.models import Snapshot, Subscription, Topic

#: Messages whose bytes are read: of all ranges of a minute together, and of one range at least and at most.
READ_ROWS, LEAST_READ, MOST_READ = 100_000, 100, 10_000
COLUMNS = (
    *("messages", "bytes", "oldest_seconds"),
    *("acked_messages", "acked_bytes", "oldest_acked_seconds"),
    *("kept_messages", "kept_bytes", "oldest_kept_seconds"),
)


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of messages, their bytes, and the id of the oldest."""

    messages: int = 0
    bytes: int = 0
    oldest_id: int | None = None

    def __add__(self, other: Amount) -> Amount:
        ids = [amount.oldest_id for amount in (self, other) if amount.oldest_id is not None]
        return Amount(self.messages + other.messages, self.bytes + other.bytes, min(ids, default=None))


@dataclass(slots=True)
class Amounts:
    """What one resource has in one region."""

    waiting: Amount = Amount()
    acked: Amount = Amount()
    kept: Amount = Amount()

    def is_empty(self) -> bool:
        return not (self.waiting.messages or self.acked.messages or self.kept.messages)

    def add(self, other: Amounts) -> None:
        for part in fields(Amounts):
            setattr(self, part.name, getattr(self, part.name) + getattr(other, part.name))


#: By the full name of the resource and the region.
Table = dict[tuple[str, str], Amounts]


def take_region_gauges(*, lanes: Sequence[LaneCount] | None = None, clock: Clock = utcnow) -> int:
    """Write a row for each resource and region that has something; return how many. May raise the database's errors.

    `lanes` are those that the caller has just counted.
    """
    now = clock()
    at = now.replace(second=0, microsecond=0)
    lanes = lanerows.count_lanes() if lanes is None else lanes
    table = _Reading(lanes, int(now.timestamp() * 1000)).table()
    for key in _emptied(at):
        table.setdefault(key, Amounts())
    rows = [_row(resource, region, at, now, amounts) for (resource, region), amounts in table.items()]
    with write_transaction():
        RegionGaugeMinute.objects.bulk_create(
            rows,
            batch_size=1000,
            update_conflicts=True,
            unique_fields=["resource", "at", "region"],
            update_fields=COLUMNS,
        )
    return len(rows)


class _Reading:
    """Reads the amounts of all resources as of one moment."""

    def __init__(self, lanes: Sequence[LaneCount], now_ms: int) -> None:
        self._lanes = lanes
        self._now_ms = now_ms
        self._table: Table = defaultdict(Amounts)
        self._topics = {
            pk: (names.topic_name(project, name), seconds)
            for pk, project, name, seconds in Topic.objects.values_list(
                "id", "project__project_id", "topic_id", "message_retention_seconds"
            )
        }
        self._limit = MOST_READ

    def table(self) -> Table:
        self._read_subscriptions()
        self._read_snapshots()
        self._read_topics()
        shows_idle = len(self._table) <= ALL_UP_TO
        return {key: amounts for key, amounts in self._table.items() if shows_idle or not amounts.is_empty()}

    def _read_subscriptions(self) -> None:
        backlogs = self._backlogs()
        rows = Subscription.objects.select_related("project").order_by("id")
        for subscription in rows.iterator():
            waiting = backlogs.get(subscription.pk, {})
            acked = self._acked(subscription, waiting) if subscription.retain_acked_messages else {}
            for region in {settings.REGION, *waiting, *acked}:
                amounts = Amounts(waiting.get(region, Amount()), acked.get(region, Amount()))
                self._table[subscription.name, region].add(amounts)
                self._add_to_topic(subscription.topic_id, region, amounts)

    def _backlogs(self) -> Mapping[int, Mapping[str, Amount]]:
        """Return what waits, by subscription and region."""
        self._limit = max(min(READ_ROWS // max(len(self._lanes), 1), MOST_READ), LEAST_READ)
        backlogs: dict[int, dict[str, Amount]] = defaultdict(dict)
        for pk, region, count, oldest_id in self._lanes:
            read, size = messagerows.backlog_bytes(subscription_id=pk, region=region, limit=self._limit)
            backlogs[pk][region] = Amount(count, _scaled(size, read, count), oldest_id)
        return backlogs

    def _acked(self, subscription: Subscription, waiting: Mapping[str, Amount]) -> Mapping[str, Amount]:
        """Return what the subscription retains although it is acknowledged: the rest of the topic's messages."""
        if subscription.topic_id is None or subscription.detached:
            return {}
        created = first_id_at(int(subscription.created_at.timestamp() * 1000))
        first_id = max(first_id_at(self._now_ms - subscription.message_retention_seconds * 1000), created)
        oldest = messagerows.oldest_acked_ids(
            subscription_id=subscription.pk, topic_id=subscription.topic_id, from_id=first_id, limit=MOST_READ
        )
        acked = {}
        for region, total in self._range(subscription.topic_id, first_id).items():
            owed = waiting.get(region, Amount())
            count = max(total.messages - owed.messages, 0)
            acked[region] = Amount(count, max(total.bytes - owed.bytes, 0) if count else 0, oldest.get(region))
        return acked

    def _read_snapshots(self) -> None:
        exceptions = _snapshot_exceptions()
        for snapshot in Snapshot.objects.select_related("project").iterator():
            amounts = dict(self._range(snapshot.topic_pk, snapshot.boundary_id))
            for region, is_included, count, oldest_id in exceptions.get(snapshot.pk, ()):
                amount = amounts.get(region, Amount())
                read, size = messagerows.snapshot_bytes(
                    snapshot_id=snapshot.pk, region=region, included=is_included, limit=self._limit
                )
                size = _scaled(size, read, count)
                if is_included:
                    amounts[region] = amount + Amount(count, size, oldest_id)
                else:
                    messages = max(amount.messages - count, 0)
                    oldest = amount.oldest_id if messages else None
                    amounts[region] = Amount(messages, max(amount.bytes - size, 0), oldest)
            name = names.snapshot_name(snapshot.project.project_id, snapshot.snapshot_id)
            for region in {settings.REGION, *amounts}:
                waiting = Amounts(amounts.get(region, Amount()))
                self._table[name, region].add(waiting)
                self._add_to_topic(snapshot.topic_id, region, waiting)

    def _read_topics(self) -> None:
        for pk, (name, seconds) in self._topics.items():
            self._table[name, settings.REGION].add(Amounts())
            if seconds:
                first_id = first_id_at(self._now_ms - seconds * 1000)
                for region, amount in self._range(pk, first_id).items():
                    self._table[name, region].add(Amounts(kept=amount))

    def _add_to_topic(self, topic_id: int | None, region: str, amounts: Amounts) -> None:
        if topic_id in self._topics:
            self._table[self._topics[topic_id][0], region].add(amounts)

    def _range(self, topic_id: int, from_id: int) -> Mapping[str, Amount]:
        """Return the messages of a topic from an id on, by region, as its first messages are divided among regions."""
        count = messagerows.count_messages(topic_id=topic_id, from_id=from_id)
        sample = messagerows.messages_bytes(topic_id=topic_id, from_id=from_id, limit=self._limit)
        read = sum(messages for _, messages, _, _ in sample)
        return {
            region: Amount(_scaled(messages, read, count), _scaled(size, read, count), oldest_id)
            for region, messages, size, oldest_id in sample
        }


def _scaled(value: int, read: int, count: int) -> int:
    """Return the value of `count` messages, from that of the first `read` of them."""
    return value if read >= count else value * count // max(read, 1)


def _snapshot_exceptions() -> Mapping[int, Iterable[tuple[str, bool, int, int]]]:
    """Return region, whether included, count and oldest id of what deviates from each snapshot's boundary."""
    exceptions: dict[int, list[tuple[str, bool, int, int]]] = defaultdict(list)
    rows = SnapshotMessage.objects.order_by().values_list("snapshot_id", "region", "included")
    for pk, *row in rows.annotate(Count("id"), Min("message_id")).order_by("included"):
        exceptions[pk].append((row[0], row[1], row[2], row[3]))
    return exceptions


def _emptied(at: datetime) -> Iterable[tuple[str, str]]:
    """Return what had something a moment ago, so that its curves come down to zero."""
    rows = RegionGaugeMinute.objects.filter(at__gte=at - AFTERGLOW, at__lt=at).exclude(
        messages=0, acked_messages=0, kept_messages=0
    )
    return rows.values_list("resource", "region").distinct()


def _row(resource: str, region: str, at: datetime, now: datetime, amounts: Amounts) -> RegionGaugeMinute:
    parts = (amounts.waiting, amounts.acked, amounts.kept)
    values = [value for part in parts for value in (part.messages, part.bytes, int(age_seconds(part.oldest_id, now)))]
    columns = dict(zip(COLUMNS, values, strict=True))
    return RegionGaugeMinute(project=resource.split("/")[1], resource=resource, region=region, at=at, **columns)
