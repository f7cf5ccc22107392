"""The archive: the database's messages, as zstd Parquet with a manifest in the database.

    <archive>/project=<p>/dt=<day>/<first id>-<last id>-<token>-<n>.parquet

The ids of messages say which ones are archived, and not a time: the clocks of hosts differ, and a message may be
committed long after others with higher ids. A step of a run claims committed messages that have no claim yet
(ArchivedMessage), writes them, and adds the files to the manifest in one transaction. A step that is killed leaves its
claims and files under the token of an ArchiveLeftover. The next run deletes exactly those, and no other file. If that
step was only frozen and goes on, it finds that its write was given up, and adds nothing to claims or the manifest.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings
from django.db.models import Max, Q

from deliveries.models import ArchivedMessage, ArchiveFile, ArchiveLeftover
from deliveries.pipeline.archiving.columns import COLUMNS, MESSAGE, spark_schema
from deliveries.pipeline.archiving.files import forget_identities, manifest_beside, note_identities, write_listing
from deliveries.pipeline.archiving.locks import no_readers
from deliveries.pipeline.archiving.reading import Source, read_ranges
from deliveries.pipeline.archiving.scanning import scan_files
from deliveries.pipeline.archiving.writing import WRITTEN, write_files
from deliveries.pipeline.service import database_url
from deliveries.rules.ids import first_id_at
from deliveries.store import messagerows
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import Clock, utcnow
from pushhub.common.errors import FailedPrecondition
from pushhub.common.stores import Store
from subscriptions.models import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Messages per range, and ranges per step. A run that is killed loses only the step that it was working on.
RANGE_ROWS = 25_000
STEP_RANGES = 16
#: Expired files that one transaction takes out of the manifest.
FILES_A_TRANSACTION = 1_000
#: Compaction merges the files of a day that are smaller than this into files of at least this size.
SMALL_BYTES = 64 * 1024 * 1024
#: Merged files of one job of Spark. One that is killed merges them again.
MERGES_A_JOB = 64
#: Files that compaction has replaced, or that expired, stay for this long, so that readers that know them can finish.
GRACE = timedelta(hours=1)
Ranges = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Archived:
    """What a run did."""

    messages: int
    files: int


class Archiver:
    """Writes one archive, in steps."""

    def __init__(
        self,
        root: str | Path,
        *,
        session: SparkSession,
        progress: Callable[[str], object] = lambda _: None,
        clock: Clock = utcnow,
    ) -> None:
        self._store = Store(root)
        self._clock = clock
        self._session = session
        self._progress = progress

    def run(self) -> Archived:
        """Remove what killed runs left, archive every committed message that isn't in the archive, and expire files."""
        self.sweep()
        if not ArchivedMessage.objects.exists():
            # An older release made no claims, or the database was restored only in part.
            note_identities(self._store)
        total, after_id = Archived(0, 0), 0
        while step := self._step(after_id):
            done, after_id = step
            total = Archived(total.messages + done.messages, total.files + done.files)
            self._progress(f"{total.messages:,} messages in {total.files} files")
        if settings.ARCHIVE_DAYS:
            self._expire(timedelta(days=settings.ARCHIVE_DAYS))
        write_listing(self._store)
        return total

    def sweep(self) -> int:
        """Delete the files of killed runs and release the messages that they claimed; return the number of files.

        Files that left the archive are deleted after GRACE, if no replay runs. Only files that this deployment
        recorded as leftovers are deleted. Raises FailedPrecondition, and deletes nothing, if the manifest names a
        missing file in one of their folders: the manifest is then older than the archive, and a file that it calls a
        leftover may be the only one with a message.
        """
        with no_readers(self._store) as are_gone:
            due = Q(path="")
            if are_gone:
                due |= Q(replaced_at=None) | Q(replaced_at__lte=self._clock() - GRACE)
            return self._delete(list(ArchiveLeftover.objects.filter(due).order_by("pk")))

    def _delete(self, leftovers: list[ArchiveLeftover]) -> int:
        with write_transaction():
            # The run that writes them may go on after all (_check_write).
            writes = [leftover.pk for leftover in leftovers if leftover.token]
            ArchiveLeftover.objects.filter(pk__in=writes).update(replaced_at=self._clock())
        names = self._files_of(leftovers)
        named = manifest_beside(names)
        if missing := sorted(name for name in named if not self._store.exists(name)):
            raise FailedPrecondition(
                f"The manifest names {missing[0]}, which is not in {self._store}. Was the database restored from an "
                "older backup? Nothing was deleted. `pipeline archive verify` says what differs, and "
                "`pipeline archive adopt` rebuilds the manifest from the files."
            )
        unnamed = [name for name in names if name not in named]
        if unnamed:
            # The run that changed the manifest may have been killed before it wrote this list.
            write_listing(self._store)
        for name in unnamed:
            self._store.delete(name)
        for leftover in leftovers:
            self._release(leftover)
        return len(unnamed)

    def compact(self, *, written: Callable[[int], object] = lambda _: None) -> int:
        """Merge the small files of each project's day; return the number of such days.

        Calls `written` with the number of messages of each job of Spark.
        """
        merges = small_files()
        for start in range(0, len(merges), MERGES_A_JOB):
            chunk = merges[start : start + MERGES_A_JOB]
            self._merge(chunk)
            written(sum(row.rows for rows in chunk for row in rows))
            self._progress(f"{sum(map(len, chunk))} files became {len(chunk)}")
        self.sweep()
        return len({_folder(rows[0]) for rows in merges})

    def _step(self, after_id: int) -> tuple[Archived, int] | None:
        """Archive the next messages after an id; return what was archived and the last id, or None for no messages."""
        from pyspark.sql import functions as f

        ids = messagerows.messages_unarchived(after_id=after_id, limit=RANGE_ROWS)
        if not ids:
            return None
        write = self._write_begin()
        first, claimed = ids[0], 0
        ranges: Ranges = []
        while ids:
            with write_transaction():
                _check_write(write)
                messagerows.insert_archived(write_id=write.pk, message_ids=ids)
            claimed += len(ids)
            ranges.append((ids[0] - 1, ids[-1]))
            if len(ranges) == STEP_RANGES:
                break
            ids = messagerows.messages_unarchived(after_id=ids[-1], limit=RANGE_ROWS)
        last = ranges[-1][1]
        # Spark makes as many partitions as there are cores, each with neighbouring ranges.
        frame = self._session.createDataFrame(ranges, "after long, to long")
        messages = frame.mapInArrow(partial(read_ranges, source=source(write_id=write.pk)), spark_schema(MESSAGE))
        rows = self._written(messages.withColumn("step", f.lit(self._next_step())), write, first=first, last=last)
        written = sum(row.rows for row in rows)
        if settings.ARCHIVING and written != claimed:
            raise FailedPrecondition(f"{written} of {claimed} messages were written; the next run writes them again.")
        with write_transaction():
            ArchiveFile.objects.bulk_create(rows)
            _check_write(write)
            write.delete()
        return Archived(written, len(rows)), last

    def _write_begin(self) -> ArchiveLeftover:
        """Record a write before its first file."""
        with write_transaction():
            # In a database that was moved, ids begin at 1 again, and messages may have claims of writes with such ids.
            return ArchiveLeftover.objects.create(id=secrets.randbits(62), token=secrets.token_hex(6))

    def _next_step(self) -> int:
        """Return a number larger than that of every earlier step: the time in ms, unless the clock is behind."""
        last = ArchiveFile.objects.aggregate(last=Max("last_step"))["last"] or 0
        return max(int(self._clock().timestamp() * 1000), last + 1)

    def _written(self, messages: DataFrame, write: ArchiveLeftover, *, first: int, last: int) -> list[ArchiveFile]:
        """Write a frame; return a row of the manifest for each file, not stored yet."""
        from pyspark.sql import functions as f

        dated = messages.withColumn("dt", f.date_format("publish_time", "yyyy-MM-dd"))
        # Each task writes what it read. Bringing a day's messages together first would cost more than half of the rate,
        # and only one core would write a project's day.
        ordered = dated.sortWithinPartitions("project", "dt", "topic", "publish_time")
        name = f"{first}-{last}-{write.token}"
        written = ordered.mapInArrow(partial(write_files, address=self._store.address, name=name), WRITTEN).collect()
        return [ArchiveFile(**row.asDict()) for row in written]

    def _files_of(self, leftovers: list[ArchiveLeftover]) -> list[str]:
        """Return the existing files of leftovers, including those that a killed task had not finished."""
        tokens = {leftover.token for leftover in leftovers if leftover.token}
        paths = [leftover.path for leftover in leftovers if not leftover.token and self._store.exists(leftover.path)]
        if not tokens:
            return paths
        return paths + [file.name for file in self._store.files() if tokens.intersection(re.split("[-/]", file.name))]

    def _release(self, leftover: ArchiveLeftover) -> None:
        """Give up the claims of a write, then forget it."""
        forget_identities(ArchivedMessage.objects.filter(write_id=leftover.pk))
        with write_transaction():
            leftover.delete()

    def _expire(self, kept: timedelta) -> None:
        """Take the files out of the archive whose messages are all older than `kept`. A later sweep deletes them."""
        expired = ArchiveFile.objects.filter(last_id__lt=first_id_at(int((self._clock() - kept).timestamp() * 1000)))
        while rows := list(expired[:FILES_A_TRANSACTION]):
            with write_transaction():
                self._take_out(rows)
            self._progress(f"{len(rows)} files are older than {kept.days} days")

    def _take_out(self, rows: Sequence[ArchiveFile]) -> None:
        """Take files out of the manifest, in the caller's transaction. They stay in the folder for GRACE."""
        now = self._clock()
        ArchiveFile.objects.filter(pk__in=[row.pk for row in rows]).delete()
        ArchiveLeftover.objects.bulk_create(ArchiveLeftover(path=row.path, replaced_at=now) for row in rows)

    def _merge(self, merges: Sequence[Sequence[ArchiveFile]]) -> None:
        """Write the messages of each group of files into one file, a task for each, and replace the files by it."""
        old = [row for rows in merges for row in rows]
        write = self._write_begin()
        first, last = min(row.first_id for row in old), max(row.last_id for row in old)
        rows = self._written(self.merged(merges), write, first=first, last=last)
        if sum(row.rows for row in rows) != sum(row.rows for row in old):
            raise FailedPrecondition("Compaction did not read every message; the files stay as they are.")
        with write_transaction():
            self._take_out(old)
            ArchiveFile.objects.bulk_create(rows)
            _check_write(write)
            write.delete()
        write_listing(self._store)

    def merged(self, merges: Sequence[Sequence[ArchiveFile]]) -> DataFrame:
        """Return the messages of groups of files, a partition for each group."""
        paths = [(number, row.path) for number, rows in enumerate(merges) for row in rows]
        names = self._session.createDataFrame(paths, "merge int, path string").repartitionById(len(merges), "merge")
        return names.mapInArrow(partial(scan_files, address=self._store.address), spark_schema(tuple(COLUMNS)))


def _check_write(write: ArchiveLeftover) -> None:
    """Let nobody give a write up before the end of the caller's transaction.

    Raises FailedPrecondition if another run has done so already, because this one was frozen or cut off.
    """
    if not ArchiveLeftover.objects.select_for_update().filter(pk=write.pk, replaced_at=None).exists():
        raise FailedPrecondition("Another archiver has taken over; this one stops.")


def small_files() -> list[list[ArchiveFile]]:
    """Return the groups of neighbouring small files of each project's day of which compaction makes one file each."""
    groups: list[list[ArchiveFile]] = []
    small = ArchiveFile.objects.filter(bytes__lt=SMALL_BYTES)
    for row in sorted(small, key=lambda row: (_folder(row), row.first_id, row.path)):
        group = groups[-1] if groups else []
        if not group or _folder(group[0]) != _folder(row) or sum(other.bytes for other in group) >= SMALL_BYTES:
            groups.append([row])
        else:
            group.append(row)
    return [group for group in groups if len(group) > 1]


def _folder(row: ArchiveFile) -> str:
    return row.path.rpartition("/")[0]


def source(*, write_id: int) -> Source:
    """Return how Spark's tasks reach the service's database."""
    topics = {row.pk: (row.project.project_id, row.name) for row in Topic.objects.select_related("project")}
    return Source(database_url(), topics, write_id)
