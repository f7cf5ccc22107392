"""Adds partial sums to the metrics exactly once: their segments are noted in the same transactions.

A segment that is noted already is skipped, wherever it comes from: another counter, or a backfill over the
same files. Sums are added to minutes, hours and days. To add hours and days up from the minutes again would
cost sixty times as much; `rebuild` does that on demand.

SQLite has one writer, for which all publishers wait. A large batch is therefore added in short transactions, in the
order of the keys. Each one notes up to which key the segments are counted, and after a crash counting goes on there.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from django.db import connection

from deliveries.models import Metric, MetricDay, MetricHour, MetricMinute, Segment
from deliveries.store import metricrows
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.series.expiry import HOURS_KEPT, MINUTES_KEPT
from deliveries.telemetry.series.series import SPANS, floor
from pushhub.common.clock import Clock, utcnow

#: Resource, event, time, response class, response code and host: the key of a row of the metrics.
Key = tuple[str, str, datetime, str, int, str]

#: Keys of the minutes that one transaction adds at first, at least and at most. Each key has up to three rows.
FIRST_KEYS, LEAST_KEYS, MOST_KEYS = 500, 50, 2000
#: A transaction that takes longer makes the next one smaller; one that takes less than half makes it larger.
TRANSACTION_SECONDS = 0.1
#: Resources of which one transaction of `rebuild` adds up a span.
RESOURCES_A_TRANSACTION = 20
NAMES_A_STATEMENT = 5000


@dataclass(slots=True)
class Sums:
    """The sums of a key. `add` is associative, commutative and exact."""

    project: str
    count: int = 0
    bytes: int = 0
    latency_us_sum: int = 0
    latency_us_max: int = 0
    buckets: dict[int, int] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        self.count += other.count
        self.bytes += other.bytes
        self.latency_us_sum += other.latency_us_sum
        self.latency_us_max = max(self.latency_us_max, other.latency_us_max)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count


@dataclass(frozen=True, slots=True)
class Partial:
    """The sums of one key, with the minute as its time, in one segment."""

    segment: str
    key: Key
    sums: Sums


@dataclass(frozen=True, slots=True)
class Added:
    """The new segments and their rows. `skipped` segments were in the ledger already."""

    segments: int
    skipped: int
    rows: int
    #: False if the time was over before all was added. The ledger knows how far the segments are.
    is_whole: bool = True

    def __add__(self, other: Added) -> Added:
        return Added(
            self.segments + other.segments,
            self.skipped + other.skipped,
            self.rows + other.rows,
            self.is_whole and other.is_whole,
        )


class Pace:
    """The number of keys of the next transaction, chosen so that none holds the write lock for long."""

    def __init__(self) -> None:
        self.keys = FIRST_KEYS

    def took(self, seconds: float) -> None:
        if seconds > TRANSACTION_SECONDS:
            self.keys = max(self.keys // 2, LEAST_KEYS)
        elif seconds < TRANSACTION_SECONDS / 2:
            self.keys = min(self.keys * 2, MOST_KEYS)


class _Batch:
    """Partial sums by key, in the order in which they are added, and the number of rows of each segment."""

    def __init__(self, partials: Iterable[Partial]) -> None:
        self.rows: dict[str, int] = defaultdict(int)
        self._sums: dict[Key, list[tuple[str, Sums]]] = defaultdict(list)
        for partial in partials:
            self.rows[partial.segment] += partial.sums.count
            # An event has no resource if its subscription was deleted before the attempt.
            if partial.key[0]:
                self._sums[partial.key].append((partial.segment, partial.sums))
        self.keys = sorted(self._sums)

    def news(self, keys: Sequence[Key], rows: Mapping[str, Segment]) -> dict[Key, Sums]:
        """Return the sums of the keys, without those that are in the metrics according to the ledger."""
        news: dict[Key, Sums] = {}
        for key in keys:
            for segment, sums in self._sums[key]:
                row = rows.get(segment)
                if row is None or (row.state == Segment.State.COUNTING and _place(key) > row.place):
                    news.setdefault(key, Sums(sums.project)).add(sums)
        return news


def add_partials(partials: Iterable[Partial], *, job: str, is_over: Callable[[], bool] = lambda: False) -> Added:
    """Add the sums whose segment is new, and note the segments. Raises the database's errors.

    When it returns, all of a segment is in the metrics, unless `is_over` returned true after one of the transactions.
    Then, as after an error, the metrics may have a part of it, and the ledger knows which.
    """
    batch, pace, added = _Batch(partials), Pace(), Added(0, 0, 0)
    start = 0
    while start == 0 or start < len(batch.keys):
        keys = batch.keys[start : start + pace.keys]
        end = start + max(len(keys), 1)
        with only_writer():
            began = time.monotonic()
            rows = Segment.objects.in_bulk(list(batch.rows))
            if start == 0:
                skipped = sum(row.state != Segment.State.COUNTING for row in rows.values())
                added = Added(0, skipped, 0)
                if skipped == len(batch.rows):
                    break
            news = batch.news(keys, rows)
            add_sums(news)
            added += _note(batch, rows, job=job, place=_place(keys[-1]) if end < len(batch.keys) else None)
        pace.took(time.monotonic() - began)
        start = end
        # What an earlier call has added already is passed over, so that each call gets further.
        if news and start < len(batch.keys) and is_over():
            return replace(added, is_whole=False)
    return added


def add_sums(news: Mapping[Key, Sums]) -> None:
    """Add sums of minutes to the minutes, hours and days, in the caller's transaction."""
    sums = news
    for model, span in SPANS.items():
        sums = news if model is MetricMinute else _grouped(sums, span)
        _write(model, sums, add=True)


def _note(batch: _Batch, rows: Mapping[str, Segment], *, job: str, place: list[Any] | None) -> Added:
    """Note that the batch's segments are counted up to a place, or as a whole; return the finished segments."""
    now = utcnow()
    state = Segment.State.COUNTED if place is None else Segment.State.COUNTING
    changed = [
        Segment(name=name, state=state, rows=count, job=job, at=now, place=place or [])
        for name, count in batch.rows.items()
        if name not in rows
        or (rows[name].state == Segment.State.COUNTING and (place is None or place > rows[name].place))
    ]
    Segment.objects.bulk_create(
        changed,
        batch_size=NAMES_A_STATEMENT,
        update_conflicts=True,
        unique_fields=["name"],
        update_fields=["state", "rows", "job", "at", "place"],
    )
    return Added(len(changed), 0, sum(row.rows for row in changed)) if place is None else Added(0, 0, 0)


def _place(key: Key) -> list[Any]:
    """Return a key as JSON that sorts as the key does."""
    resource, event, at, *others = key
    return [resource, event, int(at.timestamp()), *others]


def noted(names: Iterable[str]) -> set[str]:
    """Return the segments that are counted as a whole, or in quarantine."""
    wanted = list(names)
    noted: set[str] = set()
    for start in range(0, len(wanted), NAMES_A_STATEMENT):
        chunk = wanted[start : start + NAMES_A_STATEMENT]
        rows = Segment.objects.filter(name__in=chunk).exclude(state=Segment.State.COUNTING)
        noted.update(rows.values_list("name", flat=True))
    return noted


def note_quarantine(name: str, *, reason: str, job: str) -> None:
    """Note a file that cannot be read. It was moved away, so it is not found again."""
    Segment.objects.update_or_create(
        name=name,
        defaults={"state": Segment.State.QUARANTINED, "reason": reason[:255], "rows": 0, "job": job, "at": utcnow()},
    )


def rebuild(*, since: datetime, until: datetime, clock: Clock = utcnow) -> int:
    """Add the hours and days of a time up again, from minutes and hours; return the rows written.

    An hour or a day whose finer rows may have expired keeps its sums: what is left of them would only lower it.
    """
    written = 0
    finer = ((MetricMinute, MINUTES_KEPT, MetricHour, "hour"), (MetricHour, HOURS_KEPT, MetricDay, "day"))
    for source, kept, target, word in finer:
        span = SPANS[target]
        # The first span that is whole, and one more as the clock of the host that deletes may be ahead of ours.
        whole = floor(clock() - kept, span) + 2 * span
        first, end = max(floor(since, span), whole), floor(until - timedelta.resolution, span) + span
        times = source._default_manager.filter(at__gte=first, at__lt=end)
        for at in times.datetimes("at", word, tzinfo=UTC):  # type: ignore[arg-type]
            written += _rebuild_span(source, target, at)
    return written


def _rebuild_span(source: type[Metric], target: type[Metric], at: datetime) -> int:
    """Add one hour or day up again, in transactions of a few resources each; return the rows written."""
    rows = source._default_manager.filter(at__gte=at, at__lt=at + SPANS[target])
    resources = list(rows.values_list("resource", flat=True).distinct().order_by("resource"))
    # With the events, the database finds the rows of a resource in an index.
    events = list(rows.values_list("event", flat=True).distinct().order_by("event"))
    written = 0
    for start in range(0, len(resources), RESOURCES_A_TRANSACTION):
        chunk = resources[start : start + RESOURCES_A_TRANSACTION]
        sums: dict[Key, Sums] = {}
        with only_writer():
            for row in rows.filter(resource__in=chunk, event__in=events).iterator():
                key = (row.resource, row.event, at, row.response_class, row.response_code, row.host)
                sums.setdefault(key, Sums(row.project)).add(_sums(row))
            _write(target, sums, add=False)
        written += len(sums)
    return written


@contextmanager
def only_writer() -> Iterator[None]:
    """Run the block in a transaction that excludes others of its kind: each changes rows of the metrics."""
    with write_transaction():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {Segment._meta.db_table} IN SHARE ROW EXCLUSIVE MODE")
        yield


def _grouped(finer: Mapping[Key, Sums], span: timedelta) -> dict[Key, Sums]:
    grouped: dict[Key, Sums] = {}
    for (resource, event, at, response_class, code, host), sums in finer.items():
        key = (resource, event, floor(at, span), response_class, code, host)
        grouped.setdefault(key, Sums(sums.project)).add(sums)
    return grouped


def _write(model: type[Metric], sums: Mapping[Key, Sums], *, add: bool) -> None:
    metricrows.write_metrics(
        model._meta.db_table,
        [
            (
                row.project,
                *key,
                row.count,
                row.bytes,
                row.latency_us_sum,
                row.latency_us_max,
                orjson.dumps(row.buckets, option=orjson.OPT_NON_STR_KEYS).decode(),
            )
            for key, row in sums.items()
        ],
        add=add,
    )


def _sums(row: Metric) -> Sums:
    buckets = {int(bucket): count for bucket, count in row.buckets.items()}
    return Sums(row.project, row.count, row.bytes, row.latency_us_sum, row.latency_us_max, buckets)
