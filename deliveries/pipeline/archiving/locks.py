"""The locks of an archive: one archiver works on it, and any number of readers keep replaced files from deletion.

An archive is locked where its manifest is: with PostgreSQL by advisory locks, which machines share as they share the
archive. With SQLite there is one machine, and the locks are files, in the archive's folder or else in the data folder.
An archiver that was frozen beyond its lock is refused by the manifest (archive.py).
"""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from django.conf import settings
from django.db import connection

from deliveries.models import ArchiveOwner
from pushhub.common.advisory import advisory_lock, advisory_lock_tried
from pushhub.common.errors import FailedPrecondition
from pushhub.common.stores import Store, lock_file, make_folders

OWNER = ".owner"
LOCK = ".lock"
#: Readers share this lock. A process that deletes files which they may read holds it alone.
READERS = ".readers"


@contextmanager
def only_archiver(root: str | Path | Store, *, take_over: bool = False) -> Iterator[None]:
    """Lock an archive for the block. Raises FailedPrecondition if another process or another deployment has it.

    `take_over` makes this deployment the owner of another deployment's archive.
    """
    store = Store(root)
    with _locked(store, LOCK, shared=False) as is_locked:
        if not is_locked:
            raise FailedPrecondition(f"Another archiver works on {store}.")
        _own(store, take_over=take_over)
        yield


def is_archiving(root: str | Path | Store) -> bool:
    """Return whether an archiver works on an archive now."""
    with _locked(Store(root), LOCK, shared=False) as is_free:
        return not is_free


@contextmanager
def reading(root: str | Path | Store) -> Iterator[None]:
    """Within the block, no file that the manifest names is deleted, even if compaction replaces it."""
    with _locked(Store(root), READERS, shared=True):
        yield


@contextmanager
def no_readers(root: str | Path | Store) -> Iterator[bool]:
    """Yield whether the archive has no readers. If so, none can begin within the block."""
    with _locked(Store(root), READERS, shared=False) as is_locked:
        yield is_locked


def _own(store: Store, *, take_over: bool) -> None:
    """Write this deployment's identity into the archive, or compare it with the one that is there."""
    owner, _ = ArchiveOwner.objects.get_or_create(pk=1, defaults={"identity": uuid.uuid4().hex})
    identity = store.read_text(OWNER).strip()
    if identity == owner.identity:
        return
    if identity and not take_over:
        raise FailedPrecondition(
            f"{store} is the archive of another deployment ({identity}): choose another folder with PUSHHUB_ARCHIVE. "
            "If that deployment is gone, `pipeline archive adopt --take-over` makes its archive this one's."
        )
    store.write_bytes(OWNER, f"{owner.identity}\n".encode())


@contextmanager
def _locked(store: Store, name: str, *, shared: bool) -> Iterator[bool]:
    """Hold a lock for the block; yield whether it was free. Waits for a shared lock, but not for an exclusive one."""
    if connection.vendor == "postgresql":
        key = f"{store} {name}"
        with advisory_lock(key, shared=True) if shared else advisory_lock_tried(key) as is_locked:
            yield shared or bool(is_locked)
        return
    folder = Path(store.root)
    if not store.is_local:
        folder, name = Path(settings.DATA_DIR) / "locks", f"{sha256(store.address.encode()).hexdigest()[:16]}{name}"
    make_folders(folder)
    with (folder / name).open("w") as file:
        if shared:
            fcntl.flock(file, fcntl.LOCK_SH)
        yield shared or lock_file(file)
