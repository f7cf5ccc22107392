"""A message's attempts from the journal, which has them after the ack too.

The journals that are open on this machine have the events of the last seconds. All others are in Parquet segments,
whose names tell when they were opened. Nobody waits for all of these to be read: a search reads those of the times
where something is missing (`gaps`), in order of time, as many as BUDGET_SECONDS allows. The next search goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings

from deliveries.models import Delivery, ShippedSegment
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.columns import parse_line
from deliveries.telemetry.journal.journal import CLOSE_SECONDS
from deliveries.telemetry.journal.shipping import EVERY_ID, KEY, address_of, id_bounds
from pushhub.common.clock import utcnow
from pushhub.common.stores import AnyFile, open_parquet

#: A segment has events from some seconds before it was opened, as events wait to be written, to some seconds after.
MARGIN_MS = int(CLOSE_SECONDS * 1000) + 5_000
#: The time for a search, because a person waits for the page.
BUDGET_SECONDS = 0.25
#: How much longer it may take where segments are read from a bucket.
BUCKET_SECONDS = 2.0
#: A search ends with the segment that brings it to this many events.
MAX_EVENTS = 1_000
COLUMNS = [
    *("event", "time", "subscription", "subscription_id", "topic_id", "attempt", "outcome", "response_code", "reason"),
    *("latency_us", "worker", "answer"),
]
#: Events of these names are attempts; the others tell how a delivery ended.
ATTEMPTS = frozenset({"push", "pull", "streaming_pull"})
HOUR = timedelta(hours=1)
#: The bounds of the ids in this many segments are cached, because reading a footer takes 0.3 ms.
MAX_CACHED_BOUNDS = 20_000

#: From when to when, in ms since 1970.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One event of the journal about a message."""

    at: datetime
    #: push, pull, streaming_pull, publish, dead_letter, filter or drop.
    event: str
    #: "" and 0 for a publish, which has no subscription.
    subscription: str
    subscription_id: int
    topic_id: int
    attempt: int
    outcome: str
    #: The HTTP status, or the reason if there was no response.
    result: str
    latency_ms: float | None
    worker: str
    #: The beginning of a failing answer, without secrets, if the subscription keeps those.
    answer: str = ""


class AttemptSearch:
    """Searches for the events of one message until the time is up."""

    def __init__(self, message_id: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._message_id = message_id
        self._monotonic = monotonic
        self._give_up = 0.0
        #: A journal may be sealed while it is read, so that an event is found twice.
        self._events: dict[Attempt, None] = {}
        self._names: set[str] = set()
        #: Where to go on, if the time was up: when the first segment that was not read was opened, in ms since 1970.
        self.rest_ms: int | None = None
        #: Segments that could not be read.
        self.unreadable = 0

    @property
    def events(self) -> list[Attempt]:
        """The events that were found, in order of time."""
        return sorted(self._events, key=lambda event: event.at)

    def begin(self) -> None:
        """Start the clock, and read the journals that are open on this machine."""
        if not settings.JOURNAL:
            return
        import pyarrow.compute  # the first import takes long and doesn't count as part of the search
        import pyarrow.parquet  # noqa: F401

        budget = BUDGET_SECONDS + (BUCKET_SECONDS if settings.JOURNAL_BUCKET else 0.0)
        self._give_up = self._monotonic() + budget
        for path in files.journals(Path(settings.JOURNAL)):
            with suppress(FileNotFoundError):  # it was sealed, and the segment is read next
                self._add(_read_journal(path, str(self._message_id)))

    def read(self, spans_of: Callable[[Sequence[Attempt]], Sequence[Span]], *, from_ms: int = 0) -> None:
        """Read the segments that were opened from `from_ms` on, where `spans_of` says, given what was found so far."""
        if not settings.JOURNAL:
            return
        while self.rest_ms is None:
            for opened_ms, path in self._segments(spans_of(self.events), from_ms):
                if self._monotonic() > self._give_up or len(self._events) >= MAX_EVENTS:
                    self.rest_ms = opened_ms
                    break
                self._names.add(path.name)
                if self._add(self._read_segment(path)):
                    from_ms = opened_ms
                    break
            else:
                return

    def _add(self, events: Sequence[Attempt]) -> bool:
        before = len(self._events)
        self._events.update(dict.fromkeys(events))
        return len(self._events) > before

    def _segments(self, spans: Sequence[Span], from_ms: int) -> Iterator[tuple[int, AnyFile]]:
        """Yield the segments that may have events of these times and were not read, in order of time."""
        spans = [(start - MARGIN_MS, end + MARGIN_MS) for start, end in spans if end + MARGIN_MS >= from_ms]
        hours = {hour for start, end in spans for hour in _hours(max(start, from_ms), end)}
        for hour in sorted(hours):
            rows = {path.name: path for path in self._segments_of(hour)}
            for opened_ms, name in sorted((files.opened_ms(name), name) for name in rows):
                is_wanted = opened_ms >= from_ms and any(start <= opened_ms <= end for start, end in spans)
                if is_wanted and name not in self._names:
                    yield opened_ms, rows[name]

    def _segments_of(self, hour: datetime) -> Iterator[AnyFile]:
        """Yield the segments of an hour that may have the message, those of the bucket last."""
        for path in (Path(settings.JOURNAL) / files.SEALED / f"dt={hour:%Y-%m-%d}" / f"hour={hour:%H}").glob("*"):
            if files.is_segment_name(path.name):
                yield path
        if settings.JOURNAL_BUCKET:
            start_ms = int(hour.timestamp() * 1000)
            rows = ShippedSegment.objects.filter(opened_ms__gte=start_ms, opened_ms__lt=start_ms + 3_600_000)
            rows = rows.filter(first_id__lte=self._message_id, last_id__gte=self._message_id)
            yield from (address_of(name) for name in rows.values_list("name", flat=True))

    def _read_segment(self, path: AnyFile) -> list[Attempt]:
        """Return the message's events in one segment."""
        import pyarrow as pa
        import pyarrow.compute as pc

        message_id = str(self._message_id)
        try:
            # The database has the ids of a segment in the bucket.
            first, last = _bounds(path) if isinstance(path, Path) else EVERY_ID
            if not first <= self._message_id <= last:
                return []
            with open_parquet(path) as segment:
                chosen = pc.equal(segment.read(columns=[KEY], use_threads=False)[KEY], message_id)
                if not pc.any(chosen).as_py():
                    return []
                rows = segment.read(columns=COLUMNS, use_threads=False).filter(chosen).to_pylist()
                return [_attempt(row) for row in rows]
        except FileNotFoundError:
            # It has expired, or was just moved to the bucket.
            if isinstance(path, Path) and settings.JOURNAL_BUCKET:
                return self._read_segment(address_of(path.name))
            return []
        except (OSError, pa.ArrowInvalid):
            self.unreadable += 1
            return []


def _hours(start_ms: int, end_ms: int) -> Iterator[datetime]:
    """Yield the hours of a span, up to the present one."""
    hour = datetime.fromtimestamp(start_ms / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    end = min(datetime.fromtimestamp(end_ms / 1000, UTC), utcnow())
    while hour <= end:
        yield hour
        hour += HOUR


def _read_journal(path: Path, message_id: str) -> list[Attempt]:
    """Return the message's events in a journal that isn't sealed yet. Raises FileNotFoundError."""
    needle = f'"{message_id}"'.encode()
    content = path.read_bytes()
    if needle not in content:
        return []
    events = []
    # What follows the last line break is being written.
    for line in content.split(b"\n")[:-1]:
        if needle not in line:
            continue
        with suppress(ValueError):
            part = parse_line(line)
            for place, found_id in enumerate(part.columns[KEY]):
                if found_id == message_id:
                    row = {**part.shared, **{name: values[place] for name, values in part.columns.items()}}
                    row["time"] = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=row["time"])
                    events.append(_attempt(row))
    return events


@lru_cache(maxsize=MAX_CACHED_BOUNDS)
def _bounds(path: Path) -> tuple[int, int]:
    return id_bounds(path)


def _attempt(row: dict[str, Any]) -> Attempt:
    latency_us = row.get("latency_us")
    return Attempt(
        at=row["time"],
        event=row["event"],
        subscription=row.get("subscription") or "",
        subscription_id=row.get("subscription_id") or 0,
        topic_id=row.get("topic_id") or 0,
        attempt=row.get("attempt") or 0,
        outcome=row.get("outcome") or "",
        result=row.get("reason") or str(row.get("response_code") or ""),
        latency_ms=None if latency_us is None else latency_us / 1000,
        worker=row.get("worker") or "",
        answer=row.get("answer") or "",
    )


def _ms_of(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def numbers_of(events: Iterable[Attempt]) -> set[int]:
    """Return the numbers of the attempts among these events."""
    return {event.attempt for event in events if event.event in ATTEMPTS and event.attempt}


def gaps(
    events: Sequence[Attempt],
    *,
    published_ms: int,
    now_ms: int,
    waiting: Mapping[int, Delivery],
    owed: Collection[int],
    ended: Collection[int],
) -> list[Span]:
    """Return the times of events that are missing, by the attempts' numbers and by what has ended.

    `waiting` has the deliveries that wait, `owed` the subscriptions that may have got the message, and `ended` those
    whose last event is known; the keys are those of subscriptions.
    """
    spans: list[Span] = []
    for subscription_id in {*waiting, *owed} - {*ended}:
        own = [event for event in events if event.subscription_id == subscription_id and event.event in ATTEMPTS]
        last_ms, last_number = published_ms, 0
        for event in own:
            if event.attempt > last_number + 1 or 1 < event.attempt < last_number:
                spans.append((last_ms, _ms_of(event.at)))
            last_ms, last_number = _ms_of(event.at), event.attempt
        row = waiting.get(subscription_id)
        if row is None:
            spans.append((last_ms, now_ms))
        elif row.attempts > last_number:
            at = row.last_attempt_at
            spans.append((last_ms, max(last_ms, _ms_of(at)) if at is not None else now_ms))
    return spans
