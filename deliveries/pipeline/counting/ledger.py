"""Adding partial sums to the metrics, exactly once: the segments they come from are noted in the same transaction.

A segment that is noted already is left out, whoever brings it again: a stream that starts anew, a lost checkpoint, a
backfill over the same files. Hours and days grow by the same sums as minutes, which costs as much as there is news;
to add them up again from the minutes would cost sixty times as much with each batch. `rebuild` does that on demand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import orjson
from django.db import connection

from deliveries.metrics.expiry import HOURS_KEPT, MINUTES_KEPT
from deliveries.metrics.series import floor
from deliveries.models import Metric, MetricDay, MetricHour, MetricMinute, Segment
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow

#: Resource, event, time, response class, response code, host: what a row of the metrics is about.
Key = tuple[str, str, datetime, str, int, str]

SPANS: Mapping[type[Metric], timedelta] = {
    MetricMinute: timedelta(minutes=1),
    MetricHour: timedelta(hours=1),
    MetricDay: timedelta(days=1),
}
KEY_FIELDS = ("resource", "event", "at", "response_class", "response_code", "host")
SUM_FIELDS = ("count", "bytes", "latency_us_sum", "latency_us_max", "buckets")
#: SQLite takes so many parameters a statement at most, and a row has twelve.
ROWS_A_STATEMENT = 2000
NAMES_A_STATEMENT = 5000


@dataclass(slots=True)
class Sums:
    """What is known of a key; `add` is associative and commutative, and exact."""

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
    """Sums of one key in one segment, by minute."""

    segment: str
    key: Key
    sums: Sums


@dataclass(frozen=True, slots=True)
class Added:
    """What came of it."""

    segments: int
    skipped: int
    rows: int


def partials_add(partials: Iterable[Partial], *, job: str) -> Added:
    """Add those whose segment is new, and note the segments. One transaction; raises the database's errors."""
    by_segment: dict[str, list[Partial]] = defaultdict(list)
    for partial in partials:
        by_segment[partial.segment].append(partial)
    with _only_writer():
        known = noted(by_segment)
        new = {name: rows for name, rows in by_segment.items() if name not in known}
        rows_of = {name: sum(one.sums.count for one in rows) for name, rows in new.items()}
        for model, sums in _by_span(one for rows in new.values() for one in rows).items():
            _add(model, sums)
        Segment.objects.bulk_create(
            [
                Segment(name=name, state=Segment.State.COUNTED, rows=rows, job=job, at=utcnow())
                for name, rows in rows_of.items()
            ],
            batch_size=ROWS_A_STATEMENT,
        )
    return Added(segments=len(new), skipped=len(known), rows=sum(rows_of.values()))


def noted(names: Iterable[str]) -> set[str]:
    """Those of the segments that the ledger has."""
    wanted = list(names)
    found: set[str] = set()
    for start in range(0, len(wanted), NAMES_A_STATEMENT):
        chunk = wanted[start : start + NAMES_A_STATEMENT]
        found.update(Segment.objects.filter(name__in=chunk).values_list("name", flat=True))
    return found


def quarantine_note(name: str, *, reason: str, job: str) -> None:
    """Note a file that cannot be read. It has been moved away, so it does not come again."""
    Segment.objects.update_or_create(
        name=name,
        defaults={
            "state": Segment.State.QUARANTINED,
            "reason": reason[:255],
            "rows": 0,
            "job": job,
            "at": utcnow(),
        },
    )


def rebuild(*, since: datetime, until: datetime, clock: Clock = utcnow) -> int:
    """Add the hours and days of a time up again, from minutes and hours; returns the rows written.

    An hour or a day whose finer rows may have expired keeps its sums: what is left of them would only lower it.
    """
    written = 0
    finer = ((MetricMinute, MINUTES_KEPT, MetricHour), (MetricHour, HOURS_KEPT, MetricDay))
    with _only_writer():
        for source, kept, target in finer:
            span = SPANS[target]
            # The first span that is whole, and one more as the clock of the host that deletes may be ahead of ours.
            whole = floor(clock() - kept, span) + 2 * span
            first, end = max(floor(since, span), whole), floor(until - timedelta.resolution, span) + span
            sums: dict[Key, Sums] = {}
            for row in source._default_manager.filter(at__gte=first, at__lt=end).iterator():
                key = (*_key(row)[:2], floor(row.at, span), *_key(row)[3:])
                sums.setdefault(key, Sums(row.project)).add(_sums(row))
            _write(target, sums)
            written += len(sums)
    return written


@contextmanager
def _only_writer() -> Iterator[None]:
    """A transaction that no other stands beside: it reads rows, adds to them and writes them back."""
    with write_transaction():
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(f"LOCK TABLE {Segment._meta.db_table} IN SHARE ROW EXCLUSIVE MODE")
        yield


def _by_span(partials: Iterable[Partial]) -> dict[type[Metric], dict[Key, Sums]]:
    """The news by minute, hour and day. Each is added up from the one before, which has fewer rows."""
    found: dict[type[Metric], dict[Key, Sums]] = {}
    # What has no name is an event of a subscription that was deleted before its attempt.
    finer: Iterable[tuple[Key, Sums]] = ((one.key, one.sums) for one in partials if one.key[0])
    for model, span in SPANS.items():
        found[model] = _grouped(finer, span)
        finer = found[model].items()
    return found


def _grouped(sums: Iterable[tuple[Key, Sums]], span: timedelta) -> dict[Key, Sums]:
    """Added up by spans."""
    found: dict[Key, Sums] = {}
    for (resource, event, at, response_class, code, host), one in sums:
        key = (resource, event, floor(at, span), response_class, code, host)
        found.setdefault(key, Sums(one.project)).add(one)
    return found


def _add(model: type[Metric], news: dict[Key, Sums]) -> None:
    """Make the sums those of the news and of the rows that are there."""
    times = {key[2] for key in news}
    resources = {key[0] for key in news}
    rows = model._default_manager.filter(at__in=times)
    # A few resources are looked up by the key; among many, all of those minutes are read at once.
    for row in rows.filter(resource__in=resources) if len(resources) < NAMES_A_STATEMENT else rows:
        sums = news.get(_key(row))
        if sums is not None:
            sums.add(_sums(row))
    _write(model, news)


def _write(model: type[Metric], sums: Mapping[Key, Sums]) -> None:
    statements.metrics_write(
        model._meta.db_table,
        [
            (
                one.project,
                *key,
                one.count,
                one.bytes,
                one.latency_us_sum,
                one.latency_us_max,
                orjson.dumps(one.buckets, option=orjson.OPT_NON_STR_KEYS).decode(),
            )
            for key, one in sums.items()
        ],
    )


def _key(row: Metric) -> Key:
    return (row.resource, row.event, row.at, row.response_class, row.response_code, row.host)


def _sums(row: Metric) -> Sums:
    buckets = {int(bucket): count for bucket, count in row.buckets.items()}
    return Sums(row.project, row.count, row.bytes, row.latency_us_sum, row.latency_us_max, buckets)
