"""The rollup: Spark counts segments as they come, and a backfill counts those of a time in the past.

The executors add up the events of segments with Arrow, as the embedded counter does, and this process adds the sums to
the ledger, which knows which segments are counted. A folder has one runner: when a driver dies, its Java machine lives
on for a second or two, and the next rollup must not run beside it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import DataError, close_old_connections, connections

from deliveries.models import ShippedSegment
from deliveries.telemetry.counting import lease, ledger
from deliveries.telemetry.counting.arrowsums import PACKED, sum_segments, unpack
from deliveries.telemetry.counting.counter import SegmentCounter
from deliveries.telemetry.counting.lag import LAG_SECONDS, Lag
from deliveries.telemetry.counting.lease import Lease
from deliveries.telemetry.counting.partials import partials_of
from deliveries.telemetry.counting.segments import hours, remove_counted, segments
from deliveries.telemetry.journal import files, sealing, shipping
from pushhub.common.background import BackgroundThread
from pushhub.common.errors import FailedPrecondition, first_line
from pushhub.common.jobs import repeat_in_outages
from pushhub.common.stores import lock_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)


#: How often the rollup looks for segments once it has counted all.
LOOK_SECONDS = 5
#: How often it says how far it is.
REPORT_SECONDS = 2.0
#: How often it checks whether it has been told to stop.
POLL_SECONDS = 1
BACKFILL = "backfill"
#: Segments of one task, and the most of one batch. A segment has 20,000 events at most.
FILES_A_TASK, MOST_FILES = 16, 256
#: What an older version left in the folder: links to segments, and the state of its stream.
LEFT_BEHIND = ("admitted", "checkpoint")


class SparkReader:
    """Reads segments with Spark: each task some of them, as the embedded counter does."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    @property
    def batch(self) -> int:
        """Return how many segments the executors take at a time. The driver has the sums of so many in its memory."""
        return min(FILES_A_TASK * self._tasks, MOST_FILES)

    files = batch

    @property
    def _tasks(self) -> int:
        """Return how many tasks the executors run at a time. Executors come and go."""
        return int(self._session.sparkContext.defaultParallelism)

    def read(self, paths: Sequence[Path]) -> list[ledger.Partial]:
        packed = self.sums(paths).toArrow().column("sums")
        return [partial for sums in packed.to_pylist() for partial in partials_of(unpack(sums))]

    def sums(self, paths: Sequence[Path]) -> DataFrame:
        """Return the sums of each of some segments, in PACKED."""
        tasks = min(self._tasks, len(paths))
        rows = [(number % tasks, str(path)) for number, path in enumerate(paths)]
        frame = self._session.createDataFrame(rows, "task int, path string").repartitionById(tasks, "task")
        return frame.mapInArrow(sum_segments, PACKED)

    def uncountable(self) -> tuple[type[Exception], ...]:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        return (PySparkException, Py4JJavaError, ValueError, OverflowError, DataError)

    def probe(self) -> None:
        self._session.range(1).count()


class Rollup:
    """Counts the segments of a journal's folder. Calls `counted` with the number of events of each batch."""

    def __init__(
        self, folder: Path, *, session: SparkSession, counted: Callable[[int], object] = lambda _: None
    ) -> None:
        self._folder = folder
        self._counted = counted
        self._counter = SegmentCounter(folder, SparkReader(session), job="rollup")
        self._lag = Lag(folder)
        self._lease = Lease(lease.Counter.SPARK)
        self._reporter = BackgroundThread("rollup-report", self._report, at_end=connections.close_all)
        self._is_told_to_stop = False
        #: Stands for the segments that wait unseen after a look that failed.
        self._unseen: list[str] = []

    def once(self) -> None:
        """Count what is there, then return."""
        self._begin()
        try:
            self._count_available(self._look)
        finally:
            self._lease.release()

    def run(self) -> None:
        """Count what is there, then what comes, until `stop` is called. Raises the error of a batch."""
        self._lag.forget()
        self._begin()
        self._reporter.start()
        try:
            while not self._is_told_to_stop:
                self._count_available(self._try_to_look)
                for _ in range(LOOK_SECONDS // POLL_SECONDS):
                    if not self._is_told_to_stop:
                        time.sleep(POLL_SECONDS)
        finally:
            self._reporter.stop(timeout=5)
            self._lease.release()

    def stop(self) -> None:
        """Have `run` or `once` return after the batch that is being counted. A signal handler may call it."""
        self._is_told_to_stop = True

    def _begin(self) -> None:
        for name in LEFT_BEHIND:
            shutil.rmtree(self._folder / name, ignore_errors=True)
        self._lease.take()

    def _count_available(self, look: Callable[[], None]) -> None:
        """Count until no segment waits. A bucket may have more when those that were copied are counted."""
        look()
        while self._counter.waiting and not self._is_told_to_stop:
            added = repeat_in_outages(self._counter.count_next, what="to count segments")
            self._lag.progressed()
            self._counted(added.rows)
            if not self._counter.waiting:
                look()

    def _look(self) -> None:
        _seal(self._folder)
        self._counter.look()

    def _try_to_look(self) -> None:
        try:
            self._look()
            self._unseen = []
        except Exception as error:
            self._unseen = ["?"]
            logger.warning("new segments are looked at later: %s", first_line(error))
            close_old_connections()

    def _report(self) -> None:
        """Write how far the rollup is, without which it is not ready, and renew the lease."""
        if self._reporter.stopping.wait(REPORT_SECONDS):
            return
        try:
            waiting = list(self._counter.waiting)
            self._lag.write([*waiting, *self._unseen])
            # If no batch is counted, or nobody knows what waits, the embedded counter takes over.
            if not self._unseen and self._lag.seconds() <= LAG_SECONDS:
                self._lease.renew(waiting)
        except Exception as error:  # the next turn tries again
            logger.warning("the rollup reports later: %s", first_line(error))
            close_old_connections()


def _seal(folder: Path) -> None:
    """Seal what can be sealed. The maintenance worker raises the alarm for the rest."""
    try:
        sealing.seal_closed(folder)
    except OSError as error:
        logger.warning("journals are not sealed: %s", first_line(error))


def backfill(folder: Path, *, session: SparkSession, since: datetime, until: datetime) -> ledger.Added:
    """Count the segments with events of a time that the ledger does not have, each as a whole."""
    _seal(folder)
    reader = SparkReader(session)
    counter = SegmentCounter(folder, reader, job=BACKFILL)
    paths_by_name = _between(folder, since, until)
    known = ledger.noted(paths_by_name)
    new = [path for name, path in paths_by_name.items() if name not in known]
    total = ledger.Added(0, len(known), 0)
    size = reader.batch
    for start in range(0, len(new), size):
        batch = new[start : start + size]
        if settings.JOURNAL_BUCKET:
            shipping.fetch(folder / shipping.FETCHED / BACKFILL, [path.name for path in batch])
        counter.waiting = {path.name: path for path in batch if counter.segments.check(path)}
        while counter.waiting:
            total += repeat_in_outages(counter.count_next, what="to count segments")
        if settings.JOURNAL_BUCKET:
            remove_counted(folder / shipping.FETCHED / BACKFILL)
    return total


def _between(folder: Path, since: datetime, until: datetime) -> dict[str, Path]:
    """Return the segments whose journal was opened between two times, or up to an hour before, by their names.

    Those of the bucket have the paths of their copies.
    """
    first, last = (since - timedelta(hours=1)).timestamp() * 1000, until.timestamp() * 1000
    if settings.JOURNAL_BUCKET:
        shipping.note_forgotten(from_ms=first, before_ms=last)
        rows = ShippedSegment.objects.filter(opened_ms__gte=first, opened_ms__lt=last).order_by("opened_ms", "name")
        return {name: folder / shipping.FETCHED / BACKFILL / name for name in rows.values_list("name", flat=True)}
    paths = {}
    for hour in hours(folder / files.SEALED):
        for path in segments(hour):
            # A file of another name is checked as well, and so goes into quarantine.
            if not files.is_segment_name(path.name) or first <= files.opened_ms(path.name) < last:
                paths[path.name] = path
    return paths


@contextmanager
def only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises FailedPrecondition if another rollup has it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / files.RUNNER_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if not lock_file(handle):
            raise FailedPrecondition(f"another rollup runs on {folder}: there can be one only")
        yield
    finally:
        os.close(handle)
