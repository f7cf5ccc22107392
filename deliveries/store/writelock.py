"""Write transactions of the data plane, in turn.

SQLite has one writer. Who finds it busy sleeps and tries again, up to 100 ms a time and in no order, so that under load
one process starves another. So writers on SQLite first queue for a lock file, where the kernel wakes the next at once.
PostgreSQL needs none of that.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

_local = threading.local()


@contextmanager
def write_transaction() -> Iterator[None]:
    """A transaction that writes, after those that asked before it."""
    with _turn(), transaction.atomic():
        yield


@contextmanager
def _turn() -> Iterator[None]:
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        # Inside a transaction the write lock is ours already, and to wait for a turn could be to wait for ever.
        yield
        return
    handle = _handle(f"{connection.settings_dict['NAME']}.turn")
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def _handle(path: str) -> int:
    """This thread's own handle: such a lock belongs to the handle, so threads that shared one would not wait."""
    kept: dict[str, int] = _local.__dict__.setdefault("handles", {})
    if path not in kept:
        kept[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    return kept[path]
