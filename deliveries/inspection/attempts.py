"""A message's attempts from the journal's Parquet segments, which exist after the ack too.

A message id contains the publish time, and a segment's name the time when it was opened. So only the segments of the
first minutes and those around the last known attempt are read, as many of them as BUDGET_SECONDS allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Q

from deliveries.journal.files import SEALED, SEGMENT_SUFFIX, is_segment_name, opened_ms
from deliveries.journal.journal import CLOSE_SECONDS
from deliveries.journal.shipping import EVERY_ID, KEY, address_of, id_bounds
from deliveries.models import ShippedSegment
from deliveries.rules.ids import publish_time_ms
from pushhub.common.stores import AnyFile, parquet_open

#: A segment has events from some seconds before it was opened, as events wait to be written, to some seconds after.
MARGIN_MS = int(CLOSE_SECONDS * 1000) + 5_000
#: Attempts are searched for this long after the publish, and around the last known attempt.
FIRST_MS = 10 * 60_000
#: The time for the search, because a person waits for the page.
BUDGET_SECONDS = 0.25
#: How much longer it may take where segments are read from a bucket.
BUCKET_SECONDS = 2.0
COLUMNS = [
    *("event", "time", "subscription", "subscription_id", "attempt", "outcome", "response_code", "reason"),
    *("latency_us", "worker"),
]
HOUR = timedelta(hours=1)
#: The bounds of the ids in this many segments are cached, because reading a footer takes 0.3 ms.
MAX_CACHED_BOUNDS = 20_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """One event of the journal about a message."""

    at: datetime
    #: push, pull, streaming_pull, publish, dead_letter, expire, filter or drop.
    event: str
    #: "" and 0 for a publish, which has no subscription.
    subscription: str
    subscription_id: int
    attempt: int
    outcome: str
    #: The HTTP status, or the reason if there was no response.
    result: str
    latency_ms: float | None
    worker: str


@dataclass(frozen=True, slots=True)
class Attempts:
    """The events in order of time. `is_complete` is false if the time was up before all segments were read."""

    events: Sequence[Attempt]
    is_complete: bool


def attempts_find(
    message_id: int, *, around: Iterable[datetime] = (), monotonic: Callable[[], float] = time.monotonic
) -> Attempts:
    """Return the journal's events of a message. The segments around the given times are read as well."""
    if not settings.JOURNAL:
        return Attempts([], is_complete=True)
    import pyarrow.compute  # the first import takes long and doesn't count as part of the search
    import pyarrow.parquet  # noqa: F401

    published_ms = publish_time_ms(message_id)
    spans = [(published_ms, published_ms + FIRST_MS)]
    spans += [(int(at.timestamp() * 1000),) * 2 for at in around]
    paths: list[AnyFile] = [*segments_between(Path(settings.JOURNAL), spans)]
    give_up = monotonic() + BUDGET_SECONDS
    if settings.JOURNAL_BUCKET:
        shipped = _shipped(message_id, spans)
        # A segment that is being moved is in both places.
        names = {path.name for path in shipped}
        paths = [*shipped, *(path for path in paths if path.name not in names)]
        give_up += BUCKET_SECONDS
    events: list[Attempt] = []
    for path in paths:
        if monotonic() > give_up:
            return Attempts(sorted(events, key=_time_of), is_complete=False)
        events += _read(path, str(message_id))
    return Attempts(sorted(events, key=_time_of), is_complete=True)


def segments_between(folder: Path, spans: Sequence[tuple[int, int]]) -> list[Path]:
    """Return the segments that may have events of these spans (in ms since 1970), the earliest first."""
    paths: dict[Path, int] = {}
    for start_ms, end_ms in spans:
        for hour in _hours(start_ms - MARGIN_MS, end_ms + MARGIN_MS):
            for path in (folder / SEALED / f"dt={hour:%Y-%m-%d}" / f"hour={hour:%H}").glob(f"*{SEGMENT_SUFFIX}"):
                if is_segment_name(path.name) and start_ms - MARGIN_MS <= opened_ms(path.name) <= end_ms + MARGIN_MS:
                    paths[path] = opened_ms(path.name)
    return sorted(paths, key=lambda path: paths[path])


def _shipped(message_id: int, spans: Sequence[tuple[int, int]]) -> list[AnyFile]:
    """Return the segments of the bucket that may have the message at one of these times, the earliest first."""
    times = Q()
    for start_ms, end_ms in spans:
        times |= Q(opened_ms__gte=start_ms - MARGIN_MS, opened_ms__lte=end_ms + MARGIN_MS)
    rows = ShippedSegment.objects.filter(times, first_id__lte=message_id, last_id__gte=message_id).order_by("opened_ms")
    return [address_of(name) for name in rows.values_list("name", flat=True)]


def _hours(start_ms: int, end_ms: int) -> Iterator[datetime]:
    hour = datetime.fromtimestamp(start_ms / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    while hour.timestamp() * 1000 <= end_ms:
        yield hour
        hour += HOUR


def _read(path: AnyFile, message_id: str) -> list[Attempt]:
    """Return the message's events in one segment: none if the segment is damaged or was just removed."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        # The database has the ids of a segment in the bucket.
        first, last = _bounds(path) if isinstance(path, Path) else EVERY_ID
        if not first <= int(message_id) <= last:
            return []
        with parquet_open(path) as segment:
            ids = segment.read(columns=[KEY], use_threads=False)[KEY]
            chosen = pc.equal(ids, message_id)
            if not pc.any(chosen).as_py():
                return []
            return [
                _attempt(row) for row in segment.read(columns=COLUMNS, use_threads=False).filter(chosen).to_pylist()
            ]
    except (OSError, pa.ArrowInvalid):
        return []


@lru_cache(maxsize=MAX_CACHED_BOUNDS)
def _bounds(path: Path) -> tuple[int, int]:
    return id_bounds(path)


def _attempt(row: dict[str, Any]) -> Attempt:
    latency_us = row["latency_us"]
    return Attempt(
        at=row["time"],
        event=row["event"],
        subscription=row["subscription"] or "",
        subscription_id=row["subscription_id"] or 0,
        attempt=row["attempt"] or 0,
        outcome=row["outcome"] or "",
        result=row["reason"] or str(row["response_code"] or ""),
        latency_ms=None if latency_us is None else latency_us / 1000,
        worker=row["worker"] or "",
    )


def _time_of(attempt: Attempt) -> datetime:
    return attempt.at
