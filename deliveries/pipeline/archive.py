"""The archive: messages of closed ranges of ids, as zstd Parquet with a manifest in the database.

    <archive>/project=<p>/dt=<day>/<first id>-<last id>-<n>.parquet

The manifest decides what is part of it: its rows and the mark of how far the archive reaches are written in one
transaction, once the files are in their place. A file that no row names is what a run left that was killed, and goes.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deliveries import store
from deliveries.models import ArchiveFile, ArchiveMark, Message
from deliveries.pipeline.archivereading import Source, read_ranges
from deliveries.pipeline.service import database_url
from deliveries.rules.ids import EPOCH_MS, TIME_SHIFT, first_id_at
from deliveries.turns import write_transaction
from pushhub.errors import FailedPrecondition
from subscriptions.models import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A publish takes far less than that from drawing its ids to its commit: older ids are all there or never will be.
CLOSED_MS = 60_000
#: Messages of one range, and ranges of one step; after each step what is done is done.
RANGE_ROWS = 25_000
STEP_RANGES = 16
#: Files of a day below this are worth to be made one.
SMALL_BYTES = 64 * 1024 * 1024
SCHEMA = (
    "project string, topic string, message_id string, publish_time timestamp, data binary,"
    " attributes map<string,string>, ordering_key string"
)
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run did."""

    messages: int
    files: int


@contextmanager
def only_archiver(root: Path) -> Iterator[None]:
    """One archive has one writer; FailedPrecondition for a second one."""
    import fcntl

    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"Another archiver works on {root}.") from None
        yield


class Archiver:
    """Writes one archive, in steps."""

    def __init__(
        self, root: Path, *, session: SparkSession, progress: Callable[[str], object] = lambda _: None
    ) -> None:
        self._root = root
        self._session = session
        self._progress = progress
        self._temporary = root / ".writing"

    def run(self, *, closed_ms: int = CLOSED_MS, until_id: int = store.LAST_ID) -> Archived:
        """Archive what is closed and isn't yet; what a killed run left is removed first."""
        self.sweep()
        before_id = min(first_id_at(time.time_ns() // 1_000_000 - closed_ms), until_id)
        total = Archived(0, 0)
        while ranges := self._next_ranges(before_id):
            done = self._step(ranges)
            total = Archived(total.messages + done.messages, total.files + done.files)
            self._progress(f"{total.messages:,} messages in {total.files} files")
        return total

    def sweep(self) -> int:
        """Remove files that the manifest does not name; how many."""
        shutil.rmtree(self._temporary, ignore_errors=True)
        known = set(ArchiveFile.objects.values_list("path", flat=True))
        found = [path for path in self._root.rglob("*.parquet") if self._name(path) not in known]
        for path in found:
            path.unlink()
        return len(found)

    def compact(self) -> int:
        """Make one file of the small ones of a project's day; how many days it was done for."""
        days: dict[str, list[ArchiveFile]] = {}
        for row in ArchiveFile.objects.filter(bytes__lt=SMALL_BYTES).order_by("first_id"):
            days.setdefault(row.path.rpartition("/")[0], []).append(row)
        crowded = {day: rows for day, rows in days.items() if len(rows) > 1}
        for day, rows in crowded.items():
            self._compact_day(day, rows)
            self._progress(f"{day}: {len(rows)} files became one")
        return len(crowded)

    def _next_ranges(self, before_id: int) -> Ranges:
        """The next ranges of ids, (after, to], of about as many messages each."""
        after = reached()
        ranges: Ranges = []
        while len(ranges) < STEP_RANGES:
            to = store.messages_range_end(after_id=after, before_id=before_id, size=RANGE_ROWS)
            if to is None:
                break
            ranges.append((after, to))
            after = to
        return ranges

    def _step(self, ranges: Ranges) -> Archived:
        first, last = ranges[0][0] + 1, ranges[-1][1]
        # As many partitions as there are cores, each of neighbouring ranges.
        frame = self._session.createDataFrame(ranges, "after long, to long")
        messages = frame.mapInArrow(partial(read_ranges, source=source()), SCHEMA)
        rows = self._written(messages, f"{first}-{last}", first=first, last=last)
        with write_transaction():
            ArchiveFile.objects.bulk_create(rows)
            ArchiveMark.objects.update_or_create(pk=1, defaults={"through_id": last})
        return Archived(sum(row.rows for row in rows), len(rows))

    def _written(self, messages: Any, stem: str, *, first: int, last: int) -> list[ArchiveFile]:
        """Write a frame and put its files in their place; their rows of the manifest, not stored yet."""
        from pyspark.sql import functions as f

        shutil.rmtree(self._temporary, ignore_errors=True)
        dated = messages.withColumn("dt", f.date_format("publish_time", "yyyy-MM-dd"))
        # Each task writes what it read. To bring a day's messages together first would cost more than half of the rate,
        # and leave a project's day to one core.
        ordered = dated.sortWithinPartitions("project", "dt", "topic", "publish_time")
        writer = ordered.write.partitionBy("project", "dt").option("compression", "zstd")
        writer.parquet(_address(self._temporary))
        rows = []
        for number, path in enumerate(sorted(self._temporary.rglob("*.parquet"))):
            target = self._root / path.parent.relative_to(self._temporary) / f"{stem}-{number}.parquet"
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            rows.append(self._row(target, first=first, last=last))
        shutil.rmtree(self._temporary, ignore_errors=True)
        return rows

    def _compact_day(self, day: str, old: list[ArchiveFile]) -> None:
        frame = self._session.read.option("basePath", _address(self._root)).parquet(
            *[_address(self._root / row.path) for row in old]
        )
        first, last = min(row.first_id for row in old), max(row.last_id for row in old)
        stem = f"{first}-{last}-c{time.time_ns() // 1_000_000}"
        rows = self._written(frame.drop("dt").coalesce(1), stem, first=first, last=last)
        with write_transaction():
            ArchiveFile.objects.filter(pk__in=[row.pk for row in old]).delete()
            ArchiveFile.objects.bulk_create(rows)
        for row in old:
            (self._root / row.path).unlink(missing_ok=True)

    def _row(self, path: Path, *, first: int, last: int) -> ArchiveFile:
        import pyarrow.parquet as pq

        rows = pq.read_metadata(path).num_rows
        return ArchiveFile(path=self._name(path), first_id=first, last_id=last, rows=rows, bytes=path.stat().st_size)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()


def _address(path: Path) -> str:
    """A local path for Spark, which takes percent signs and the like as they are."""
    return f"file://{path.absolute()}"


def reached() -> int:
    """The last id that is archived or was passed over, or 0."""
    return ArchiveMark.objects.filter(pk=1).values_list("through_id", flat=True).first() or 0


def waiting(*, closed_ms: int = CLOSED_MS) -> int:
    """How many messages could be archived now."""
    before_id = first_id_at(time.time_ns() // 1_000_000 - closed_ms)
    return Message.objects.filter(pk__gt=reached(), pk__lt=before_id).count()


def source() -> Source:
    """The service's database, as tasks reach it."""
    topics = {row.pk: (row.project.project_id, row.name) for row in Topic.objects.select_related("project")}
    return Source(database_url(), topics, EPOCH_MS, TIME_SHIFT)
