"""Who counts: Spark's rollup or the embedded counter. A row of the database holds the lease.

Spark takes the lease whenever it starts. The embedded counter takes it when nobody renews it. Should both count for a
moment, no segment is counted twice: the ledger prevents that, and the lease only saves the work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deliveries.journal import files
from deliveries.models import CountingLease
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow

logger = logging.getLogger(__name__)

Counter = CountingLease.Counter

#: A lease that was not renewed for this long is free.
LEASE = timedelta(seconds=45)
#: A holder whose state does not change renews its lease this often.
RENEW = timedelta(seconds=15)
#: A counter that is behind says so in the log this often.
REMIND = timedelta(minutes=1)


class Lease:
    """One counter's side of the lease."""

    def __init__(self, counter: Counter, *, clock: Clock = utcnow) -> None:
        self._counter = counter
        self._clock = clock
        self._holds = False
        self._renewed_at: datetime | None = None
        self._waiting = 0
        self._told_at: datetime | None = None

    def is_free(self) -> bool:
        """Return whether this counter may count. Reads only."""
        row = CountingLease.objects.first()
        if row is None or row.counter == self._counter or row.until <= self._clock():
            return True
        if self._holds:
            self._holds, self._renewed_at = False, None
            logger.info("attempts are counted %s from now on", by(row.counter))
        return False

    def take(self) -> None:
        """Take the lease, whoever holds it."""
        self._write(counted_to=self._clock(), waiting=0)
        self._told_at = self._clock()
        logger.info("attempts are counted %s", by(self._counter))

    def renew(self, waiting: Iterable[str]) -> None:
        """Renew the lease, and note which segments wait. Writes only if that has changed or the lease grows old."""
        names = list(waiting)
        now = self._clock()
        is_old = self._renewed_at is None or now - self._renewed_at >= RENEW
        if not self._holds:
            self.take()
        elif not is_old and len(names) == self._waiting:
            return
        self._write(counted_to=min(map(opened_at, names), default=now), waiting=len(names))
        if names and (self._told_at is None or now - self._told_at >= REMIND):
            self._told_at = now
            logger.info("%s", state_line(clock=self._clock))

    def release(self) -> None:
        """Let the lease end now, if this counter still has it."""
        self._holds = False
        with write_transaction():
            CountingLease.objects.filter(counter=self._counter).update(until=self._clock())

    def _write(self, *, counted_to: datetime, waiting: int) -> None:
        now = self._clock()
        values = {"counter": self._counter, "until": now + LEASE, "counted_to": counted_to, "waiting": waiting}
        with write_transaction():
            CountingLease.objects.update_or_create(pk=1, defaults=values)
        self._holds, self._renewed_at, self._waiting = True, now, waiting


def opened_at(segment: str) -> datetime:
    """Return when the journal of a segment was opened: its events are of that time or later."""
    match = files.NAME.fullmatch(segment.removesuffix(files.SEGMENT_SUFFIX))
    return datetime.fromtimestamp(int(match["opened_ms"]) / 1000 if match else 0, UTC)


def by(counter: str) -> str:
    return "by Spark" if counter == Counter.SPARK else "by the embedded counter"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the metrics are: all events before `counted_to` are counted."""

    counted_to: datetime
    waiting: int
    counter: str
    #: Whether the counter has stopped renewing its lease, and no other one has taken it.
    is_stopped: bool

    def time(self, now: datetime) -> str:
        """Return the time up to which all is counted, in UTC, with its day unless that is today."""
        return f"{self.counted_to:{'%H:%M' if self.counted_to.date() == now.date() else '%Y-%m-%d %H:%M'}}"

    def line(self, now: datetime) -> str:
        """Return the state in words, such as "counted up to 14:05, 3 segments waiting, by Spark"."""
        segments = "1 segment" if self.waiting == 1 else f"{self.waiting} segments"
        line = f"counted up to {self.time(now)}, {segments} waiting, {by(self.counter)}"
        return f"{line}, which has stopped" if self.is_stopped else line


def counting_progress(*, clock: Clock = utcnow) -> Progress | None:
    """Return how far the metrics are; None before the first segment was looked for."""
    row = CountingLease.objects.first()
    if row is None:
        return None
    return Progress(row.counted_to.astimezone(UTC), row.waiting, row.counter, row.until <= clock())


def state_line(*, clock: Clock = utcnow) -> str:
    """Return how far the metrics are, in one line for people."""
    progress = counting_progress(clock=clock)
    return "nothing has been counted yet" if progress is None else progress.line(clock())
