"""Counts segments into the metrics, batch by batch. The embedded counter and Spark share all of it but the reader."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from deliveries.telemetry.counting import ledger
from deliveries.telemetry.counting.segments import Segments
from deliveries.telemetry.journal.parquetfiles import damage, first_line

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """Reads segments."""

    @property
    def files(self) -> int:
        """Return how many segments are read at a time."""

    @property
    def batch(self) -> int:
        """Return for how many segments the ledger is called once."""

    def read(self, paths: Sequence[Path]) -> list[ledger.Partial]:
        """Return the sums of some segments. Raises OSError, or one of `uncountable` for their content."""

    def uncountable(self) -> tuple[type[Exception], ...]:
        """Return the errors of a segment whose content cannot be read, or fits no column."""

    def probe(self) -> None:
        """Raise an error if the engine is at fault, and not a segment."""


class SegmentCounter:
    """Counts what is new in a folder."""

    def __init__(self, folder: Path, reader: Reader, *, job: str) -> None:
        self.segments = Segments(folder, job=job)
        #: The segments that were found and are not counted, by name.
        self.waiting: dict[str, Path] = {}
        self._reader = reader
        self._job = job

    def look(self) -> None:
        """Find new segments."""
        self.waiting.update({path.name: path for path in self.segments.new()})

    def count_next(self, *, is_over: Callable[[], bool] = lambda: False) -> ledger.Added:
        """Count the oldest segments that wait, at most a batch. What `is_over` cuts short goes on waiting."""
        paths = [self.waiting[name] for name in sorted(self.waiting)[: self._reader.batch]]
        read, added = self._count(paths, is_over=is_over)
        if added.is_whole:
            for path in paths[:read]:
                del self.waiting[path.name]
        return added

    def count(self, paths: Sequence[Path]) -> ledger.Added:
        """Count a batch of segments. Those that cannot be counted go into quarantine."""
        return self._count(paths, is_over=lambda: False)[1]

    def _count(self, paths: Sequence[Path], *, is_over: Callable[[], bool]) -> tuple[int, ledger.Added]:
        """Return how many segments were read, which is at least one, and what was added."""
        failures: tuple[type[Exception], ...] = (OSError, *self._reader.uncountable())
        try:
            return self._add(paths, is_over=is_over)
        except failures as error:
            # One at a time, a damaged file is told apart from a disk that fails, which raises OSError too.
            logger.warning("segments are counted one by one after: %s", first_line(error))
            return len(paths), self._count_each(paths)

    def _add(self, paths: Sequence[Path], *, is_over: Callable[[], bool]) -> tuple[int, ledger.Added]:
        partials: list[ledger.Partial] = []
        read = 0
        while read < len(paths) and not (read and is_over()):
            chunk = paths[read : read + self._reader.files]
            partials += self._reader.read(chunk)
            read += len(chunk)
        return read, ledger.add_partials(partials, job=self._job, is_over=is_over)

    def _count_each(self, paths: Sequence[Path]) -> ledger.Added:
        """Count segments one at a time, and put those that cannot be counted into quarantine.

        If no segment can be counted and none is damaged, the machine may be at fault, and the last error is raised.
        """
        total = ledger.Added(0, 0, 0)
        failed: dict[str, Exception] = {}
        for path in paths:
            try:
                if reason := damage(path):
                    self.segments.put_aside(path.name, reason=reason)
                    continue
                total += self._add([path], is_over=lambda: False)[1]
            except FileNotFoundError:
                continue
            except self._reader.uncountable() as error:
                self._reader.probe()
                failed[path.name] = error
        if len(failed) > 1 and not total.segments:
            raise failed.popitem()[1]
        for name, cause in failed.items():
            self.segments.put_aside(name, reason=f"it cannot be counted: {first_line(cause)}")
        return total
