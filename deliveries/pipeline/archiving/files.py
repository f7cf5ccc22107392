"""The archive's folder: who it belongs to, and whether its files are those of the manifest.

Nothing here needs Spark. `verify` reads every file of the manifest and says what is wrong; `adopt` rebuilds the
manifest from the files, for instance after the database was restored from an older backup.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from django.db.models import Min

from deliveries.models import ArchivedMessage, ArchiveFile, ArchiveLeftover, ArchiveOwner, Message
from deliveries.pipeline.parquetfiles import damage, first_line
from deliveries.store import statements
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import FailedPrecondition

if TYPE_CHECKING:
    import pyarrow as pa

OWNER = ".owner"
LOCK = ".lock"
#: Readers hold it together, and who deletes files that they may read holds it alone.
READERS = ".readers"
#: The paths of the manifest, for those who read the files without the database.
LISTING = "files.csv"
#: <first id>-<last id>-<token of the write>-<number>; older releases had no token.
FILE_NAME = re.compile(r"[0-9]+-[0-9]+-([0-9a-z]+-)?[0-9]+\.parquet")
COLUMNS = {"topic", "message_id", "publish_time", "data", "attributes", "ordering_key"}
#: Message ids that one transaction notes.
IDS_A_TRANSACTION = 10_000


@contextmanager
def only_archiver(root: Path, *, take_over: bool = False) -> Iterator[None]:
    """Hold the folder of an archive; FailedPrecondition where another process or another deployment has it.

    `take_over` makes this deployment the owner of a folder that was another's.
    """
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (root / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPrecondition(f"Another archiver works on {root}.") from None
        _own(root, take_over=take_over)
        yield


def _own(root: Path, *, take_over: bool) -> None:
    """Write our identity into the folder, or compare it with the one that is there."""
    owner, _ = ArchiveOwner.objects.get_or_create(pk=1, defaults={"identity": uuid.uuid4().hex})
    marker = root / OWNER
    found = marker.read_text().strip() if marker.exists() else ""
    if found == owner.identity:
        return
    if found and not take_over:
        raise FailedPrecondition(
            f"{root} is the archive of another deployment ({found}): choose another folder with PUSHHUB_ARCHIVE. "
            "If that deployment is gone, `pipeline archive adopt --take-over` makes its archive this one's."
        )
    hidden = root / f"{OWNER}.new"
    with hidden.open("w") as file:
        file.write(f"{owner.identity}\n")
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(marker)


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """Keep every file that the manifest names now from being deleted, even if compaction replaces it."""
    with _readers(root) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


@contextmanager
def no_readers(root: Path) -> Iterator[bool]:
    """Return whether nobody reads the archive now; nobody begins to within the block."""
    with _readers(root) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _readers(root: Path) -> TextIO:
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    return (root / READERS).open("w")


def listing_write(root: Path) -> None:
    """Write the paths of the manifest into the folder, in place of the list before."""
    hidden = root / f".{LISTING}"
    with hidden.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path"])
        writer.writerows(ArchiveFile.objects.order_by("path").values_list("path").iterator())
    hidden.rename(root / LISTING)


@dataclass(slots=True)
class Verified:
    """How the manifest and the folder differ. Paths are below the folder."""

    files: int = 0
    messages: int = 0
    #: In the manifest and not in the folder.
    missing: list[str] = field(default_factory=list)
    #: In both, but not as they were written: the path and the reason.
    damaged: list[tuple[str, str]] = field(default_factory=list)
    #: Parquet files that the manifest does not have, whoever wrote them.
    unknown: list[str] = field(default_factory=list)


def verify(root: Path) -> Verified:
    """Read every file of the manifest, whole, and look for others. Nothing is changed."""
    found = Verified()
    named = set()
    for row in ArchiveFile.objects.iterator():
        named.add(row.path)
        if not (root / row.path).exists():
            found.missing.append(row.path)
        elif reason := damage(root / row.path, rows=row.rows):
            found.damaged.append((row.path, reason))
        else:
            found.files += 1
            found.messages += row.rows
    replaced = set(ArchiveLeftover.objects.exclude(path="").values_list("path", flat=True))
    found.unknown = sorted(set(_names(root)) - named - replaced)
    return found


@dataclass(slots=True)
class Adopted:
    """What a rebuilding of the manifest came to. Paths are below the folder."""

    added: list[str] = field(default_factory=list)
    #: Gone from the manifest: not in the folder, or not readable.
    dropped: list[str] = field(default_factory=list)
    #: Ours, but every message of them is in other files of the manifest.
    redundant: list[str] = field(default_factory=list)
    #: Parquet files that are no archive's, or cannot be read: the path and the reason.
    foreign: list[tuple[str, str]] = field(default_factory=list)
    #: Messages that two files of the manifest have.
    repeated: int = 0
    #: Messages of the database that are in the archive.
    archived: int = 0


def adopt(root: Path) -> Adopted:
    """Make the manifest what the files say, and note which messages of the database they have. No file is deleted."""
    found = Adopted()
    folders: dict[str, list[str]] = defaultdict(list)
    for name in {*_names(root), *ArchiveFile.objects.values_list("path", flat=True)}:
        folders[name.rpartition("/")[0]].append(name)
    for folder in sorted(folders):
        _adopt_folder(root, folders[folder], found)
    with write_transaction():
        # What a write left unfinished is part of the archive now, or another file has it.
        ArchiveLeftover.objects.all().delete()
    listing_write(root)
    found.archived = identities_note(root)
    return found


def _adopt_folder(root: Path, names: list[str], found: Adopted) -> None:
    """Choose the files of a project's day that together have every message, the largest first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {row.path: row for row in ArchiveFile.objects.filter(path__in=names)}
    readable: list[tuple[str, pa.Array]] = []
    for name in names:
        try:
            readable.append((name, _archive_ids(root / name)))
        except (ValueError, OSError) as error:
            if name in known:
                found.dropped.append(name)
            else:
                found.foreign.append((name, first_line(error)))
    taken = pa.array([], pa.int64())
    chosen: dict[str, ArchiveFile] = {}
    for name, ids in sorted(readable, key=lambda one: (-len(one[1]), one[0] not in known, one[0])):
        repeated = pc.sum(pc.is_in(ids, value_set=taken)).as_py() or 0
        if repeated == len(ids):
            found.redundant.append(name)
            continue
        found.repeated += repeated
        taken = pa.concat_arrays([taken, ids])
        span = pc.min_max(ids).as_py()
        size = (root / name).stat().st_size
        chosen[name] = known.get(name) or ArchiveFile(
            path=name, first_id=span["min"], last_id=span["max"], rows=len(ids), bytes=size
        )
    new = [row for name, row in chosen.items() if name not in known]
    found.added += [row.path for row in new]
    with write_transaction():
        ArchiveFile.objects.filter(path__in=[name for name in known if name not in chosen]).delete()
        ArchiveFile.objects.bulk_create(new)


def identities_note(root: Path) -> int:
    """Note anew which messages of the database are in files of the manifest; returns how many those are."""
    noted = ArchivedMessage.objects.order_by("pk")
    while pks := list(noted.values_list("pk", flat=True)[:IDS_A_TRANSACTION]):
        with write_transaction():
            noted.filter(pk__lte=pks[-1]).delete()
    oldest = Message.objects.aggregate(oldest=Min("id"))["oldest"]
    if oldest is None:
        return 0
    count = 0
    for path in ArchiveFile.objects.filter(last_id__gte=oldest).values_list("path", flat=True):
        if (root / path).exists():
            ids = [one for one in _ids(root / path).to_pylist() if one >= oldest]
            for start in range(0, len(ids), IDS_A_TRANSACTION):
                with write_transaction():
                    count += statements.archived_insert_existing(ids[start : start + IDS_A_TRANSACTION])
    return count


def manifest_beside(root: Path, paths: Iterable[Path]) -> set[str]:
    """What the manifest has in the folders of those files."""
    folders = {path.parent.relative_to(root).as_posix() for path in paths}
    return {
        name
        for folder in folders
        for name in ArchiveFile.objects.filter(path__startswith=f"{folder}/").values_list("path", flat=True)
    }


def _names(root: Path) -> Iterator[str]:
    """The Parquet files below the folder, without what is being written."""
    for path in root.rglob("*.parquet"):
        name = path.relative_to(root).as_posix()
        if not any(part.startswith((".", "_")) for part in name.split("/")):
            yield name


def _archive_ids(path: Path) -> pa.Array:
    """The message ids of a file that is an archive's and that can be read; ValueError or OSError for another."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not FILE_NAME.fullmatch(path.name):
        raise ValueError("its name is none of an archive's")
    try:
        names = set(pq.read_schema(path).names)
    except pa.ArrowException as error:
        raise ValueError(f"it cannot be read: {first_line(error)}") from None
    if lacking := COLUMNS - names:
        raise ValueError(f"it has no column {', '.join(sorted(lacking))}")
    if reason := damage(path):
        raise ValueError(reason)
    return _ids(path)


def _ids(path: Path) -> pa.Array:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pq.read_table(path, columns=["message_id"], partitioning=None)["message_id"]
    return column.cast(pa.int64()).combine_chunks()
