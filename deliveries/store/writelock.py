"""Write transactions of the data plane, which queue for a write lock.

SQLite has a single writer. A connection that finds it busy sleeps and tries again, up to 100 ms at a time and in no
order, so under load one process starves another. Therefore writers on SQLite queue for the lock of a file first, where
the kernel wakes the next at once. PostgreSQL needs none of that.

A commit waits for the disk. What would only be repeated after a power cut need not wait. The order of commits stays the
same, so a later commit that waits makes the earlier ones durable too.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection, transaction

#: PostgreSQL ends a transaction of attempts' results in which nothing has come for so long: whoever holds its rows is
#: frozen, and another worker, which has its messages by then, would wait for them.
FROZEN_MS = 3_000

_local = threading.local()


@contextmanager
def write_transaction(*, durable: bool = True) -> Iterator[None]:
    """Run the block in a transaction that writes. Without `durable`, a power cut may undo it after its commit."""
    if durable or connection.in_atomic_block:
        with _write_lock(), transaction.atomic():
            yield
    elif connection.vendor == "sqlite":
        with _write_lock(), _without_sync(), transaction.atomic():
            yield
    else:
        with transaction.atomic():
            _execute(f"SET LOCAL synchronous_commit = off; SET LOCAL idle_in_transaction_session_timeout = {FROZEN_MS}")
            yield


@contextmanager
def _without_sync() -> Iterator[None]:
    """Let SQLite's commits in the block not wait for the disk, unless the setting asks for still less."""
    if settings.SQLITE_SYNCHRONOUS != "FULL":
        yield
        return
    _execute("PRAGMA synchronous=NORMAL")
    try:
        yield
    finally:
        _execute("PRAGMA synchronous=FULL")


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def _write_lock() -> Iterator[None]:
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        # A transaction holds SQLite's own lock already: waiting for the file's lock could be a deadlock.
        yield
        return
    handle = _handle(f"{connection.settings_dict['NAME']}.turn")  # earlier versions use this name too
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _handle(path: str) -> int:
    """Return this thread's own handle: the lock belongs to the handle, so threads with a common one would not wait."""
    handles: dict[str, int] = _local.__dict__.setdefault("handles", {})
    if path not in handles:
        handles[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return handles[path]
