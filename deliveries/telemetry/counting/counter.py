"""Counts segments into the metrics, batch by batch. The embedded counter and Spark share all of it but the reader."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from deliveries.telemetry.counting import ledger
from deliveries.telemetry.counting.segments import Segments
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.parquetfiles import damage
from pushhub.common.errors import first_line

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

    def count_next(self, *, left: Callable[[], float] = lambda: math.inf) -> ledger.Added:
        """Count the oldest segments that wait, at most a batch, in the seconds `left`. What they cut short waits on.

        Those that cannot be counted go into quarantine.
        """
        paths = [self.waiting[name] for name in sorted(self.waiting, key=files.opened_ms)[: self._reader.batch]]
        read, added = self._count(paths, left=left)
        if added.is_whole:
            for path in paths[:read]:
                del self.waiting[path.name]
        return added

    def _count(self, paths: Sequence[Path], *, left: Callable[[], float]) -> tuple[int, ledger.Added]:
        """Return how many segments were read, which is at least one, and what was added."""
        failures: tuple[type[Exception], ...] = (OSError, *self._reader.uncountable())
        try:
            return self._add(paths, left=left)
        except failures as error:
            # One at a time, a damaged file is told apart from a disk that fails, which raises OSError too.
            logger.warning("segments are counted one by one after: %s", first_line(error))
            return len(paths), self._count_each(paths)

    def _add(self, paths: Sequence[Path], *, left: Callable[[], float]) -> tuple[int, ledger.Added]:
        """Read for half of the time: what is read and not added by the end is read again."""
        partials: list[ledger.Partial] = []
        read, for_adding = 0, left() / 2
        while read < len(paths) and not (read and left() < for_adding):
            chunk = paths[read : read + self._reader.files]
            partials += self._reader.read(chunk)
            read += len(chunk)
        return read, ledger.add_partials(partials, job=self._job, is_over=lambda: left() <= 0)

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
                total += self._add([path], left=lambda: math.inf)[1]
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
