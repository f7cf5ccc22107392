"""The rollup: a Spark stream from segments to metrics, and a backfill for a time in the past.

Spark calls `count` with each batch at least once, and the ledger makes that exactly once. A folder has one runner: when
a driver dies, its Java machine lives on for a second or two, and the next rollup must not run beside it.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import DataError, close_old_connections, connection, connections

from deliveries.models import ShippedSegment
from deliveries.telemetry.counting import lease, ledger
from deliveries.telemetry.counting.admission import ADMITTED, Admission
from deliveries.telemetry.counting.fetching import FILES_AT_A_TIME
from deliveries.telemetry.counting.lag import LAG_SECONDS, Lag
from deliveries.telemetry.counting.lease import Lease
from deliveries.telemetry.counting.partials import partials_of
from deliveries.telemetry.counting.segments import count_each, hours, segments
from deliveries.telemetry.counting.transforms import event_schema, partials
from deliveries.telemetry.journal import files, sealing, shipping
from deliveries.telemetry.journal.parquetfiles import first_line
from pushhub.common.background import BackgroundThread
from pushhub.common.errors import FailedPrecondition
from pushhub.common.outages import outage_or_raise

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint"
#: How often the stream looks for segments, and how often new segments are checked.
TRIGGER_SECONDS = 5
ADMISSION_SECONDS = 2.0
#: The most files of a batch while there is a backlog. Its partial sums come to the driver, and batches follow at once.
FILES_A_BATCH = 16
#: The most files of a batch later, when it waits for its trigger: more than can come in between.
FILES_A_TRIGGER = 64
#: How often to check whether a query has ended or should end.
POLL_SECONDS = 1
#: How long a stop waits for the batch that is being counted.
STOP_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.5
LAST_PAUSE_SECONDS = 30.0


class Rollup:
    """Counts the segments of a journal's folder. Calls `counted` with the number of events of each batch."""

    def __init__(
        self, folder: Path, *, session: SparkSession, counted: Callable[[int], object] = lambda _: None
    ) -> None:
        self._folder = folder
        self._counted = counted
        self._session = session
        self._admission = Admission(folder, job="rollup")
        self._lag = Lag(folder)
        self._lease = Lease(lease.Counter.SPARK)
        #: Links of the previous batch. Spark no longer needs them when the next batch begins.
        self._done: set[str] = set()
        self._keeper = BackgroundThread("admission", self._keep_admitting, at_end=connections.close_all)
        self._admitting = threading.Lock()
        self._counting = threading.Lock()
        self._is_told_to_stop = False

    def once(self) -> None:
        """Count what is there, then return."""
        self._lease.take()
        try:
            self._count_available()
        finally:
            self._lease.release()

    def _count_available(self) -> None:
        is_more = True
        while is_more and not self._is_told_to_stop:
            # Segments of a bucket come in groups of at most this size.
            is_more = self._admit() >= FILES_AT_A_TIME
            self._query(lambda: self._writer(files_a_batch=FILES_A_BATCH).trigger(availableNow=True))

    def run(self) -> None:
        """Count what is there, then what comes, until `stop` is called. Raises the error that ends the query."""
        self._lag.forget()
        self._lease.take()
        self._keeper.start()
        trigger = f"{TRIGGER_SECONDS} seconds"
        try:
            self._count_available()
            self._query(lambda: self._writer(files_a_batch=FILES_A_TRIGGER).trigger(processingTime=trigger))
        finally:
            self._keeper.stop(timeout=5)
            self._lease.release()

    def stop(self) -> None:
        """Have `run` or `once` return after the batch that is being counted. A signal handler may call it."""
        self._is_told_to_stop = True

    def _query(self, writer: Callable[[], Any]) -> None:
        """Run a query to its end. A query that fails at a segment starts again without that segment."""
        from pyspark.errors import StreamingQueryException

        while not self._is_told_to_stop:
            try:
                self._wait(writer().start())
                return
            except StreamingQueryException as error:
                if self._is_told_to_stop:
                    return
                if not self._go_around():
                    raise
                logger.warning("the rollup begins again after: %s", first_line(error))

    def _wait(self, query: Any) -> None:
        """Wait for the end of a query, or end it when told to."""
        while not query.awaitTermination(POLL_SECONDS):
            if self._is_told_to_stop:
                # Spark would report a batch that is interrupted as an error.
                if self._counting.acquire(timeout=STOP_SECONDS):
                    self._counting.release()
                query.stop()

    def _go_around(self) -> bool:
        """Count the waiting segments one by one and put the bad ones aside; return whether that changed anything."""
        connection.close()  # it may have been idle since the query began
        links = self._admission.links()
        waiting = [self._admission.link_path(name) for name in sorted(links - ledger.noted(links))]
        added = _count_each(waiting, session=self._session, admission=self._admission, job="rollup")
        put_aside = links - self._admission.links()
        # The checkpoint names the files of the failed batch. The ledger knows what is counted, so it is not needed.
        shutil.rmtree(self._folder / CHECKPOINT, ignore_errors=True)
        self._admission.unlink(ledger.noted(links))
        self._done = set()
        return bool(added.segments or put_aside)

    def count(self, batch: DataFrame, number: int) -> None:
        """Add one batch to the metrics. Spark calls this in changing threads of py4j."""
        try:
            with self._counting:
                self._count(batch, number)
        finally:
            connection.close()

    def _count(self, batch: DataFrame, number: int) -> None:
        self._admission.unlink(self._done)
        added = _persistently(partials_of(partials(batch).toArrow()), job="rollup")
        self._done = ledger.noted(self._admission.links())
        self._lag.progressed()
        self._counted(added.rows)
        logger.debug("batch %d: %d segments, %d rows, %d skipped", number, added.segments, added.rows, added.skipped)

    def _writer(self, *, files_a_batch: int) -> Any:
        from pyspark.sql import functions as f

        events = (
            self._session.readStream.schema(event_schema())
            .option("pathGlobFilter", f"*{files.SEGMENT_SUFFIX}")
            .option("maxFilesPerTrigger", files_a_batch)
            .parquet(str(self._folder / ADMITTED))
            # The name of the file is known to the stream only, and not inside the batch.
            .select("*", f.col("_metadata.file_name").alias("segment"))
        )
        checkpoint = str(self._folder / CHECKPOINT)
        return events.writeStream.foreachBatch(self.count).option("checkpointLocation", checkpoint)

    def _keep_admitting(self) -> None:
        """Look for new segments, and write how far the rollup is, without which it is not ready."""
        if self._keeper.stopping.wait(ADMISSION_SECONDS):
            return
        try:
            self._admit()
            waiting = self._admission.links() - self._done
            self._lag.write(waiting)
            # If the stream makes no progress, the embedded counter takes over.
            if self._lag.seconds() <= LAG_SECONDS:
                self._lease.renew(waiting)
        except Exception as error:  # the next turn tries again
            logger.warning("new segments are looked at later: %s", first_line(error))
            close_old_connections()

    def _admit(self) -> int:
        """Return how many segments are new."""
        with self._admitting:
            sealing.seal_closed(self._folder)
            return self._admission.admit_new()


def backfill(folder: Path, *, session: SparkSession, since: datetime, until: datetime) -> ledger.Added:
    """Count the segments with events of a time that the ledger does not have, each as a whole."""
    sealing.seal_closed(folder)
    admission = Admission(folder, job="backfill")
    paths_by_name = _between(folder, since, until)
    known = ledger.noted(paths_by_name)
    new = [path for name, path in paths_by_name.items() if name not in known]
    total = ledger.Added(0, len(known), 0)
    for start in range(0, len(new), FILES_A_BATCH):
        batch = new[start : start + FILES_A_BATCH]
        if settings.JOURNAL_BUCKET:
            shipping.fetch(folder, [path.name for path in batch])
        paths = [path for path in batch if admission.check(path)]
        if not paths:
            continue
        try:
            added = count(paths, session=session, job="backfill")
        except uncountable() as error:
            logger.warning("the segments are counted one by one after: %s", first_line(error))
            added = _count_each(paths, session=session, admission=admission, job="backfill")
        total += added
    return total


def count(paths: Sequence[Path], *, session: SparkSession, job: str) -> ledger.Added:
    """Count segments as one batch."""
    from pyspark.sql import functions as f

    events = session.read.schema(event_schema()).parquet(*map(str, paths))
    batch = events.select("*", f.col("_metadata.file_name").alias("segment"))
    return _persistently(partials_of(partials(batch).toArrow()), job=job)


def _count_each(paths: Sequence[Path], *, session: SparkSession, admission: Admission, job: str) -> ledger.Added:
    return count_each(
        paths,
        segments=admission,
        count=lambda path: count([path], session=session, job=job),
        uncountable=uncountable(),
        probe=lambda: session.range(1).count(),
    )


def uncountable() -> tuple[type[Exception], ...]:
    """Return the errors of a segment whose content cannot be read, or fits no column."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JJavaError, ValueError, OverflowError, DataError)


def _between(folder: Path, since: datetime, until: datetime) -> dict[str, Path]:
    """Return the segments whose journal was opened between two times, or up to an hour before, by their names.

    Those of the bucket have the paths of their copies.
    """
    first, last = (since - timedelta(hours=1)).timestamp() * 1000, until.timestamp() * 1000
    if settings.JOURNAL_BUCKET:
        rows = ShippedSegment.objects.filter(opened_ms__gte=first, opened_ms__lt=last).order_by("opened_ms", "name")
        return {name: folder / shipping.FETCHED / name for name in rows.values_list("name", flat=True)}
    paths = {}
    for hour in hours(folder / files.SEALED):
        for path in segments(hour):
            # A file of another name is checked as well, and so goes into quarantine.
            if not files.is_segment_name(path.name) or first <= files.opened_ms(path.name) < last:
                paths[path.name] = path
    return paths


def _persistently(new_sums: Sequence[ledger.Partial], *, job: str) -> ledger.Added:
    """Add partial sums to the metrics, however long the database is away."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return ledger.add_partials(new_sums, job=job)
        except Exception as error:
            outage_or_raise(error)
            logger.warning("the metrics are added again in %.1f s", pause, exc_info=error)
            close_old_connections()
        time.sleep(pause)
        pause = min(2 * pause, LAST_PAUSE_SECONDS)


@contextmanager
def only_runner(folder: Path) -> Iterator[None]:
    """Lock the folder. Raises FailedPrecondition if another rollup has it."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / files.RUNNER_LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        if not files.lock(handle):
            raise FailedPrecondition(f"another rollup runs on {folder}: there can be one only")
        yield
    finally:
        os.close(handle)
