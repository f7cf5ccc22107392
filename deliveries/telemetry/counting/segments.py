"""The sealed segments of a journal: which are new, which can be counted, and where the others go.

Those of a bucket are copied to the machine that counts.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from deliveries.models import ShippedSegment
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.journal import files, shipping
from deliveries.telemetry.journal.columns import event_schema
from deliveries.telemetry.journal.parquetfiles import is_not_of_content

logger = logging.getLogger(__name__)

QUARANTINE = "quarantine"
#: A folder that has changed within this time is listed again.
SETTLED_NS = 60 * 10**9
#: The most copies at a time, so that a backlog does not fill the disk.
FILES_AT_A_TIME = 64


class Segments:
    """Finds the segments of a folder that the ledger does not have yet."""

    def __init__(self, folder: Path, *, job: str) -> None:
        self._sealed = folder / shipping.FETCHED / job if settings.JOURNAL_BUCKET else folder / files.SEALED
        self._quarantine = folder / QUARANTINE
        self._job = job
        #: When the folder of each hour last changed. A folder is listed again only after a change.
        self._changed: dict[Path, int] = {}
        #: What was in the folders that had changed at the last call, which are those that change all the time.
        self._known: dict[Path, set[str]] = {}

    def new(self) -> list[Path]:
        """Return the new segments that can be read, and put the other new files into quarantine.

        A segment that is not counted yet may be returned again. After an error, the next call finds the same files.
        """
        if settings.JOURNAL_BUCKET:
            fetch_waiting(self._sealed)
        changed: dict[Path, int] = {}
        listed: dict[Path, set[str]] = {}
        fresh: list[Path] = []
        for folder, at, paths in self._changes():
            changed[folder], listed[folder] = at, {path.name for path in paths}
            fresh += [path for path in paths if path.name not in self._known.get(folder, ())]
        noted = ledger.noted(path.name for path in fresh)
        new = [path for path in fresh if path.name not in noted and self.check(path)]
        self._changed |= changed
        self._known = listed or self._known
        return new

    def check(self, path: Path) -> bool:
        """Return whether a file can be read; put it into quarantine if not. False also for a file that is gone."""
        try:
            reason = fault(path)
        except FileNotFoundError:
            return False
        if reason:
            self.put_aside(path.name, reason=reason)
        return not reason

    def put_aside(self, name: str, *, reason: str) -> None:
        """Move a segment into quarantine and write the reason into the ledger."""
        self._quarantine.mkdir(exist_ok=True)
        for path in [path for folder in hours(self._sealed) if (path := folder / name).exists()]:
            shutil.move(path, self._quarantine / name)
        ledger.note_quarantine(name, reason=reason, job=self._job)
        logger.error("segment %s was moved to %s: %s", name, self._quarantine, reason)

    def _changes(self) -> Iterator[tuple[Path, int, list[Path]]]:
        """Yield the folders that have changed, when that was, and what is in them."""
        for folder in hours(self._sealed):
            with suppress(FileNotFoundError):  # a folder whose segments have expired
                # The time is read before the listing, so the next call sees a file that arrives in between.
                at = folder.stat().st_mtime_ns
                # The time of a young change doesn't differ from that of the next one within a tick of the disk's clock.
                if self._changed.get(folder) != at or time.time_ns() - at < SETTLED_NS:
                    yield folder, at, segments(folder)


def hours(sealed: Path) -> list[Path]:
    """Return the folders of segments, oldest first. The top folder is included because strays may lie there."""
    return [sealed, *sorted(sealed.glob("dt=*/hour=*"))] if sealed.exists() else []


def segments(folder: Path) -> list[Path]:
    """Return every visible file of a folder, segment or not, oldest first."""
    paths = [path for path in folder.iterdir() if not path.name.startswith((".", "_")) and path.is_file()]
    return sorted(paths, key=lambda path: path.name)


def fault(path: Path) -> str:
    """Return what is wrong with a segment, or "" for a good one. Reads only the footer.

    Raises OSError if the content is not the cause, for instance for a missing file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not files.is_segment_name(path.name):
        return "foreign: not a name of ours"
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        if is_not_of_content(error):
            raise
        return f"not a whole Parquet file: {str(error).splitlines()[0]}"
    for column in event_schema():
        # Columns are only ever added: an older segment may lack the last ones, but the types are the same.
        if column.name in schema.names and schema.field(column.name).type != column.type:
            return f"foreign: column {column.name} is {schema.field(column.name).type} and not {column.type}"
    lacking = {"event", "time", "subscription", "topic"} - set(schema.names)
    return f"foreign: no column {', '.join(sorted(lacking))}" if lacking else ""


def fetch_waiting(fetched: Path) -> None:
    """Copy the oldest segments that are not counted, and remove the copies of those that are. Raises OSError.

    Each counter has a folder of its own, because another one may still read what this one has counted.
    """
    remove_counted(fetched)
    uncounted = ShippedSegment.objects.filter(is_counted=False).order_by("opened_ms", "name")
    while names := list(uncounted.values_list("name", flat=True)[:FILES_AT_A_TIME]):
        counted = ledger.noted(names)
        missing = set(names) - counted - {path.name for path in shipping.fetch(fetched, set(names) - counted)}
        for name in missing:
            logger.error("segment %s is gone from the bucket, and is not counted", name)
        if not counted | missing:
            return
        with write_transaction():
            ShippedSegment.objects.filter(name__in=counted | missing).update(is_counted=True)


def remove_counted(fetched: Path) -> None:
    """Remove the copies of segments that are counted, by whichever counter, and those of an older version."""
    for path in fetched.parent.glob(f"*{files.SEGMENT_SUFFIX}"):
        path.unlink(missing_ok=True)
    copies = [path.name for path in fetched.glob(f"*{files.SEGMENT_SUFFIX}")]
    for name in ledger.noted(copies):
        (fetched / name).unlink(missing_ok=True)
