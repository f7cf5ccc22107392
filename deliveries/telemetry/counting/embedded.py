"""The embedded counter: the maintenance worker counts segments into the metrics until Spark does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from django.conf import settings
from django.db import DataError

from deliveries.telemetry.counting.arrowsums import segment_sums
from deliveries.telemetry.counting.counter import SegmentCounter
from deliveries.telemetry.counting.lease import Counter, Lease
from deliveries.telemetry.counting.ledger import Partial
from deliveries.telemetry.counting.partials import partials_of
from deliveries.telemetry.runs import Kind, Run, error_line
from pushhub.common.clock import Clock, utcnow

#: How long one task may count, in the midst of a segment too: the worker has other tasks, one at a time. A read or a
#: transaction that is going on by then ends first. With 10,000 subscriptions it takes up to half a second.
TURN_SECONDS = 2.5
#: Segments of one call of the ledger.
FILES_A_BATCH = 16


class EmbeddedCounter:
    """Counts the segments of one folder while it holds the lease."""

    def __init__(self, folder: Path, *, clock: Clock = utcnow, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._lease = Lease(Counter.EMBEDDED, clock=clock)
        self._monotonic = monotonic
        self._run = Run(Kind.EMBEDDED, clock=clock)
        self._forget()

    def turn(self, *, seconds: float = TURN_SECONDS) -> int:
        """Count new segments for at most about `seconds`; return how many were counted. The rest waits."""
        if not self._lease.is_free():
            self._forget()
            self._run.end()
            return 0
        try:
            counted = self._turn(seconds)
        except Exception as error:
            self._run.end(error_line(error))
            raise
        self._run.report()
        return counted

    def _turn(self, seconds: float) -> int:
        give_up = self._monotonic() + seconds
        self._counter.look()
        counted = 0
        while self._counter.waiting and self._monotonic() < give_up:
            added = self._counter.count_next(left=lambda: give_up - self._monotonic())
            counted += added.segments
            self._run.add(added.rows)
        self._lease.renew(self._counter.waiting)
        return counted

    def _forget(self) -> None:
        """Drop what is known of the folder: by the next turn, Spark may have counted all of it."""
        self._counter = SegmentCounter(self._folder, ArrowReader(), job="embedded")


class ArrowReader:
    """Reads one segment after the other with Arrow."""

    files = 1
    batch = FILES_A_BATCH

    def read(self, paths: Sequence[Path]) -> list[Partial]:
        return [partial for path in paths for partial in partials_of(segment_sums(path))]

    def uncountable(self) -> tuple[type[Exception], ...]:
        import pyarrow as pa

        arrow: type[Exception] = pa.ArrowException
        return (arrow, ValueError, OverflowError, DataError)

    def probe(self) -> None:
        """Arrow has no engine that could be at fault."""


def count_segments() -> int:
    """Count for one turn in this process; return how many segments were counted."""
    return _counter_of(os.getpid(), settings.JOURNAL).turn() if settings.JOURNAL else 0


@cache
def _counter_of(_pid: int, folder: str) -> EmbeddedCounter:
    return EmbeddedCounter(Path(folder))
