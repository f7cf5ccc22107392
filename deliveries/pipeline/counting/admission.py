"""Which segments Spark may read: whole files of ours. The others go to quarantine, with the reason.

Spark's file source stops at the first truncated file, or drops it silently. So the stream doesn't read the sealed
segments themselves but a folder of links to those that were looked at, `admitted/`. A link goes when its segment is in
the ledger and Spark has gone on, so the folder stays small however long segments are kept.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from deliveries.journal import files
from deliveries.journal.schemas import EVENT
from deliveries.pipeline.counting import ledger

logger = logging.getLogger(__name__)

ADMITTED = "admitted"
QUARANTINE = "quarantine"


class Admission:
    """Looks for new segments. One a folder; the rollup's lock sees to that."""

    def __init__(self, folder: Path, *, job: str) -> None:
        self._sealed = folder / files.SEALED
        self._admitted = folder / ADMITTED
        self._quarantine = folder / QUARANTINE
        self._job = job
        self._seen: set[str] = set()
        #: When each folder of an hour changed last: only those that did are listed again.
        self._changed: dict[Path, int] = {}
        self._admitted.mkdir(parents=True, exist_ok=True)

    def round(self) -> int:
        """Link what is new and good; returns how many segments that were."""
        fresh = [path for path in self._fresh() if path.name not in self._seen]
        self._seen.update(path.name for path in fresh)
        known = ledger.noted(path.name for path in fresh)
        count = 0
        for path in fresh:
            if path.name not in known and self.check(path):
                self._link(path)
                count += 1
        return count

    def check(self, path: Path) -> bool:
        """Whether a file can be read; one that cannot is put into quarantine. False also for one that is gone."""
        try:
            reason = fault(path)
        except FileNotFoundError:
            return False
        if reason:
            self.put_aside(path.name, reason=reason)
        return not reason

    def put_aside(self, name: str, *, reason: str) -> None:
        """Move a segment into quarantine, with its link gone and the reason in the ledger."""
        self._quarantine.mkdir(exist_ok=True)
        for path in [path for folder in hours(self._sealed) if (path := folder / name).exists()]:
            shutil.move(path, self._quarantine / name)
        ledger.quarantine_note(name, reason=reason, job=self._job)
        self.unlink([name])
        logger.error("segment %s is put into %s: %s", name, self._quarantine, reason)

    def link_path(self, name: str) -> Path:
        return self._admitted / name

    def links(self) -> set[str]:
        return {path.name for path in self._admitted.iterdir() if not path.name.startswith(".")}

    def unlink(self, names: Iterable[str]) -> None:
        for name in names:
            (self._admitted / name).unlink(missing_ok=True)

    def _fresh(self) -> Iterator[Path]:
        for folder in hours(self._sealed):
            # Read before the listing: what comes in between is found by the next round.
            changed = folder.stat().st_mtime_ns
            if self._changed.get(folder) != changed:
                self._changed[folder] = changed
                yield from segments(folder)

    def _link(self, path: Path) -> None:
        hidden = self._admitted / f".{path.name}"
        hidden.unlink(missing_ok=True)
        try:
            os.link(path, hidden)
        except OSError:  # a file system without hard links
            shutil.copyfile(path, hidden)
        hidden.rename(self._admitted / path.name)


def hours(sealed: Path) -> list[Path]:
    """The folders of segments, in order of time; strays at the top are looked at as well."""
    return [sealed, *sorted(sealed.glob("dt=*/hour=*"))] if sealed.exists() else []


def segments(folder: Path) -> list[Path]:
    """Everything in a folder that is not hidden and no folder, ours or not, in order of time."""
    found = [path for path in folder.iterdir() if not path.name.startswith((".", "_")) and path.is_file()]
    return sorted(found, key=lambda path: path.name)


def fault(path: Path) -> str:
    """What is wrong with a segment; empty for a good one. Only its end is read. Raises FileNotFoundError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not files.is_segment_name(path.name):
        return "foreign: not a name of ours"
    try:
        found = pq.read_schema(path)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        return f"not a whole Parquet file: {str(error).splitlines()[0]}"
    for name, kind in EVENT:
        # Columns are only ever added: an older segment may end early, but has those that it has in our types.
        if name in found.names and not _is_kind(found.field(name).type, kind):
            return f"foreign: column {name} is {found.field(name).type} and not {kind}"
    lacking = {"event", "time", "subscription", "topic"} - set(found.names)
    return f"foreign: no column {', '.join(sorted(lacking))}" if lacking else ""


def _is_kind(found: object, kind: str) -> bool:
    return str(found) == ("timestamp[us, tz=UTC]" if kind == "timestamp" else kind)
