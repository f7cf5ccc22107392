"""Who counts: Spark's rollup or the embedded counter. A row of the database holds the lease.

Spark takes the lease whenever it starts. The embedded counter takes it when nobody renews it. If both count for a
moment, the ledger still counts each segment once; the lease only saves work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from deliveries.models import CountingLease
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.journal import files
from deliveries.telemetry.series.coverage import Counting, counting
from pushhub.common.clock import Clock, utcnow

logger = logging.getLogger(__name__)

Counter = CountingLease.Counter

#: A lease that was not renewed for this long is free.
LEASE = timedelta(seconds=8)
#: A holder whose state does not change renews its lease this often.
RENEW = timedelta(seconds=2)
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
        # The events of a segment are of the time when its journal was opened, or later.
        oldest = min((datetime.fromtimestamp(files.opened_ms(name) / 1000, UTC) for name in names), default=now)
        self._write(counted_to=oldest, waiting=len(names))
        if names and (self._told_at is None or now - self._told_at >= REMIND):
            self._told_at = now
            logger.info("%s", state_line(counting(clock=self._clock), clock=self._clock))

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


def by(counter: str) -> str:
    return "by Spark" if counter == Counter.SPARK else "by the embedded counter"


def state_line(state: Counting, *, clock: Clock = utcnow) -> str:
    """Return the state in one line for people, such as "counted up to 14:05, 3 segments waiting, by Spark"."""
    if state.counted_to is None:
        return "nothing has been counted yet"
    counted_to = state.counted_to.astimezone(UTC)
    time = f"{counted_to:{'%H:%M' if counted_to.date() == clock().date() else '%Y-%m-%d %H:%M'}}"
    segments = "1 segment" if state.waiting == 1 else f"{state.waiting} segments"
    line = f"counted up to {time}, {segments} waiting, {by(state.counter)}"
    return line if state.runs else f"{line}, which has stopped"
