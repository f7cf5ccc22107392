"""Compares the archive's files with the manifest, without Spark.

`verify` reads every file of the manifest and says what is wrong. `adopt` rebuilds the manifest from the files, for
instance after the database was restored from an older backup.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db.models import Min, QuerySet

from deliveries.models import ArchivedMessage, ArchiveFile, ArchiveLeftover, Message
from deliveries.pipeline.archiving.manifest import MANIFEST, ManifestFile, write_manifest
from deliveries.store import messagerows
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.journal.parquetfiles import damage
from pushhub.common.errors import first_line
from pushhub.common.stores import Store, is_hidden

if TYPE_CHECKING:
    import pyarrow as pa

#: <first id>-<last id>-<token of the write>-<number>. Older releases had no token.
FILE_NAME = re.compile(r"[0-9]+-[0-9]+-([0-9a-z]+-)?[0-9]+\.parquet")
COLUMNS = {"topic", "message_id", "publish_time", "data", "attributes", "ordering_key"}
#: Message ids that one transaction records or deletes.
IDS_A_TRANSACTION = 10_000


def write_listing(store: Store) -> None:
    """Write the manifest into the archive, in place of the previous one."""
    rows = ArchiveFile.objects.order_by("path").values_list(*(field.name for field in fields(ManifestFile)))
    write_manifest(store, [ManifestFile(*row) for row in rows.iterator()])


def require_listing(store: Store) -> None:
    """Write the manifest into the archive if it has none, because an older release wrote it."""
    if not store.exists(MANIFEST):
        write_listing(store)


@dataclass(slots=True)
class Verified:
    """How the manifest and the folder differ. Paths are below the folder."""

    files: int = 0
    messages: int = 0
    #: In the manifest and not in the folder.
    missing: list[str] = field(default_factory=list)
    #: In both, but damaged: the path and the reason.
    damaged: list[tuple[str, str]] = field(default_factory=list)
    #: Parquet files that are not in the manifest.
    unknown: list[str] = field(default_factory=list)


def verify(root: str | Path) -> Verified:
    """Read every file of the manifest in full, and look for other files. Changes nothing."""
    store = Store(root)
    verified = Verified()
    named = set()
    for row in ArchiveFile.objects.iterator():
        named.add(row.path)
        if not store.exists(row.path):
            verified.missing.append(row.path)
        elif reason := damage(store.path(row.path), rows=row.rows, filesystem=store.filesystem):
            verified.damaged.append((row.path, reason))
        else:
            verified.files += 1
            verified.messages += row.rows
    replaced = set(ArchiveLeftover.objects.exclude(path="").values_list("path", flat=True))
    verified.unknown = sorted(set(_names(store)) - named - replaced)
    return verified


@dataclass(slots=True)
class Adopted:
    """What `adopt` did. Paths are below the folder."""

    added: list[str] = field(default_factory=list)
    #: Removed from the manifest: missing in the folder, or damaged.
    dropped: list[str] = field(default_factory=list)
    #: Files of the archive whose messages are all in other files of the manifest.
    redundant: list[str] = field(default_factory=list)
    #: Parquet files that are not the archive's, or cannot be read: the path and the reason.
    foreign: list[tuple[str, str]] = field(default_factory=list)
    #: Messages that two files of the manifest have.
    repeated: int = 0
    #: Messages of the database that are in the archive.
    archived: int = 0


def adopt(root: str | Path) -> Adopted:
    """Rebuild the manifest from the files, and record which messages of the database they have. Deletes no file."""
    store = Store(root)
    adopted = Adopted()
    folders: dict[str, list[str]] = defaultdict(list)
    for name in {*_names(store), *ArchiveFile.objects.values_list("path", flat=True)}:
        folders[name.rpartition("/")[0]].append(name)
    for folder in sorted(folders):
        _adopt_folder(store, folders[folder], adopted)
    with write_transaction():
        # The messages of an unfinished write are in the archive now, by its files or by others.
        ArchiveLeftover.objects.all().delete()
    write_listing(store)
    adopted.archived = note_identities(store)
    return adopted


def _adopt_folder(store: Store, names: list[str], adopted: Adopted) -> None:
    """Choose the files of a project's day that together have every message, the largest first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    known = {row.path: row for row in ArchiveFile.objects.filter(path__in=names)}
    readable: list[tuple[ManifestFile, pa.Array]] = []
    for name in names:
        try:
            readable.append(_content(store, name))
        except (ValueError, OSError) as error:
            if name in known:
                adopted.dropped.append(name)
            else:
                adopted.foreign.append((name, first_line(error)))
    taken = pa.array([], pa.int64())
    chosen: dict[str, ArchiveFile] = {}
    for file, ids in sorted(readable, key=lambda pair: (-pair[0].rows, pair[0].path not in known, pair[0].path)):
        repeated = pc.sum(pc.is_in(ids, value_set=taken)).as_py() or 0
        if repeated == len(ids):
            adopted.redundant.append(file.path)
            continue
        adopted.repeated += repeated
        taken = pa.concat_arrays([taken, ids])
        chosen[file.path] = known.get(file.path) or ArchiveFile(**asdict(file))
    new = [row for name, row in chosen.items() if name not in known]
    adopted.added += [row.path for row in new]
    with write_transaction():
        ArchiveFile.objects.filter(path__in=[name for name in known if name not in chosen]).delete()
        ArchiveFile.objects.bulk_create(new)


def note_identities(store: Store) -> int:
    """Record again which messages of the database are in files of the manifest; return how many there are."""
    forget_identities(ArchivedMessage.objects.all())
    oldest = Message.objects.aggregate(oldest=Min("id"))["oldest"]
    if oldest is None:
        return 0
    count = 0
    for path in ArchiveFile.objects.filter(last_id__gte=oldest).values_list("path", flat=True):
        if store.exists(path):
            ids = [message_id for message_id in _ids(_parquet(store, path)).to_pylist() if message_id >= oldest]
            for start in range(0, len(ids), IDS_A_TRANSACTION):
                with write_transaction():
                    count += messagerows.insert_existing_archived(ids[start : start + IDS_A_TRANSACTION])
    return count


def forget_identities(noted: QuerySet[ArchivedMessage]) -> None:
    noted = noted.order_by("pk")
    while pks := list(noted.values_list("pk", flat=True)[:IDS_A_TRANSACTION]):
        with write_transaction():
            noted.filter(pk__gte=pks[0], pk__lte=pks[-1]).delete()


def manifest_beside(names: Iterable[str]) -> set[str]:
    """Return the files of the manifest that are in the folders of some files."""
    return {
        path
        for folder in {name.rpartition("/")[0] for name in names}
        for path in ArchiveFile.objects.filter(path__startswith=f"{folder}/").values_list("path", flat=True)
    }


def _names(store: Store) -> Iterator[str]:
    """Return the Parquet files of the archive, without those that are being written."""
    for file in store.files():
        if file.name.endswith(".parquet") and not is_hidden(file.name):
            yield file.name


def _content(store: Store, name: str) -> tuple[ManifestFile, pa.Array]:
    """Return what the manifest says of a file of the archive, and the ids of its messages.

    Raises ValueError for any other file, and ValueError or OSError for a damaged one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not FILE_NAME.fullmatch(name.rpartition("/")[2]):
        raise ValueError("its name is not that of an archive's file")
    try:
        file = _parquet(store, name)
    except pa.ArrowException as error:
        raise ValueError(f"it cannot be read: {first_line(error)}") from None
    names = set(file.schema_arrow.names)
    if lacking := COLUMNS - names:
        raise ValueError(f"it has no column {', '.join(sorted(lacking))}")
    if reason := damage(store.path(name), filesystem=store.filesystem):
        raise ValueError(reason)
    ids = _ids(file)
    steps = file.read(columns=["step"])["step"] if "step" in names else []
    first_id, last_id, first_step, last_step = (
        end or 0 for values in (ids, steps) for end in pc.min_max(values).as_py().values()
    )
    return ManifestFile(name, first_id, last_id, first_step, last_step, len(ids), store.size(name)), ids


def _ids(file: Any) -> pa.Array:
    return file.read(columns=["message_id"])["message_id"].cast("int64").combine_chunks()


def _parquet(store: Store, name: str) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetFile(store.path(name), filesystem=store.filesystem)
