"""The embedded counter: the maintenance worker counts segments into the metrics until Spark does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from django.conf import settings
from django.db import DataError

from deliveries.telemetry.counting import ledger
from deliveries.telemetry.counting.arrowsums import segment_sums
from deliveries.telemetry.counting.lease import Counter, Lease
from deliveries.telemetry.counting.partials import partials_of
from deliveries.telemetry.counting.segments import Segments, count_each
from deliveries.telemetry.runs import Kind, Run, error_line
from pushhub.common.clock import Clock, utcnow

JOB = "embedded"
#: How long one task may count, in the midst of a segment too. The worker has other tasks, one at a time.
TURN_SECONDS = 3.0
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
        self._waiting.update({path.name: path for path in self._segments.new()})
        counted = 0
        while self._waiting and not self._is_over(give_up):
            paths = [self._waiting[name] for name in sorted(self._waiting)[:FILES_A_BATCH]]
            read, added = self._count(paths, is_over=lambda: self._is_over(give_up))
            counted += added.segments
            self._run.add(added.rows)
            if added.is_whole:
                for path in paths[:read]:
                    del self._waiting[path.name]
        self._lease.renew(self._waiting)
        return counted

    def _is_over(self, give_up: float) -> bool:
        return self._monotonic() >= give_up

    def _forget(self) -> None:
        """Drop what is known of the folder: by the next turn, Spark may have counted all of it."""
        self._segments = Segments(self._folder, job=JOB)
        self._waiting: dict[str, Path] = {}

    def _count(self, paths: Sequence[Path], *, is_over: Callable[[], bool]) -> tuple[int, ledger.Added]:
        errors = uncountable()
        failures: tuple[type[Exception], ...] = (OSError, *errors)
        try:
            return count(paths, is_over=is_over)
        except failures:
            # One at a time, a damaged file is told apart from a disk that fails, which raises OSError too.
            added = count_each(paths, segments=self._segments, count=lambda path: count([path])[1], uncountable=errors)
            return len(paths), added


def count(paths: Sequence[Path], *, is_over: Callable[[], bool] = lambda: False) -> tuple[int, ledger.Added]:
    """Add the sums of segments to the metrics until `is_over`. Return how many were read, which is at least one."""
    partials: list[ledger.Partial] = []
    read = 0
    while read < len(paths) and not (read and is_over()):
        partials += partials_of(segment_sums(paths[read]))
        read += 1
    return read, ledger.add_partials(partials, job=JOB, is_over=is_over)


def uncountable() -> tuple[type[Exception], ...]:
    """Return the errors of a segment whose content cannot be read, or fits no column."""
    import pyarrow as pa

    arrow: type[Exception] = pa.ArrowException
    return (arrow, ValueError, OverflowError, DataError)


def count_segments() -> int:
    """Count for one turn in this process; return how many segments were counted."""
    return _counter_of(os.getpid(), settings.JOURNAL).turn() if settings.JOURNAL else 0


@cache
def _counter_of(_pid: int, folder: str) -> EmbeddedCounter:
    return EmbeddedCounter(Path(folder))
