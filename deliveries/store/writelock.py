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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import OperationalError, connection, transaction

from pushhub.common.stores import lock_file

#: PostgreSQL ends a transaction of attempts' results in which nothing has come for so long: whoever holds its rows is
#: frozen, and another worker, which has its messages by then, would wait for them.
FROZEN_MS = 3_000

#: How PostgreSQL says that transactions waited for each other, and how often that may happen to one.
DEADLOCK, DEADLOCKS = "40P01", 10

#: How often an impatient transaction asks for the file's lock, which can't be waited for with a limit.
POLL_SECONDS = 0.002

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


def retry_deadlocks(call: Callable[[], None]) -> None:
    """Call what runs a transaction, and again if PostgreSQL ends that because others and it wait for each other."""
    for _ in range(DEADLOCKS - 1):
        try:
            return call()
        except OperationalError as error:
            if connection.in_atomic_block or getattr(error.__cause__, "sqlstate", None) != DEADLOCK:
                raise
    return call()


@contextmanager
def impatient_transaction(seconds: float) -> Iterator[None]:
    """Run the block as `write_transaction(durable=False)` does, but wait `seconds` at most for other writers.

    Raises OperationalError after that.
    """
    if connection.in_atomic_block or connection.vendor != "sqlite":
        is_own = not connection.in_atomic_block
        with write_transaction(durable=False):
            if is_own:
                _execute(f"SET LOCAL statement_timeout = {round(seconds * 1000)}")
            yield
        return
    ends = time.monotonic() + seconds
    handle = _handle(_lock_path())
    while not lock_file(handle) and time.monotonic() < ends:
        time.sleep(POLL_SECONDS)
    try:
        # Whoever still has the file's lock has SQLite's own too, which says so.
        with _busy_timeout(max(ends - time.monotonic(), 0.0)), _without_sync(), transaction.atomic():
            yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextmanager
def _busy_timeout(seconds: float) -> Iterator[None]:
    """Let SQLite wait no longer than this for its own lock in the block."""
    with connection.cursor() as cursor:
        [before] = cursor.execute("PRAGMA busy_timeout").fetchone()
    _execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
    try:
        yield
    finally:
        _execute(f"PRAGMA busy_timeout = {before}")


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
    handle = _handle(_lock_path())
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _lock_path() -> str:
    return f"{connection.settings_dict['NAME']}.turn"  # earlier versions use this name too


def _handle(path: str) -> int:
    """Return this thread's own handle: the lock belongs to the handle, so threads with a common one would not wait."""
    handles: dict[str, int] = _local.__dict__.setdefault("handles", {})
    if path not in handles:
        handles[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return handles[path]
