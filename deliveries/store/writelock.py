"""Write transactions of the data plane. On SQLite they queue for the write lock (pushhub/common/sqlite/base.py).

A commit waits for the disk. What would only be repeated after a power cut need not wait. The order of commits stays the
same, so a later commit that waits makes the earlier ones durable too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, connections, transaction

#: PostgreSQL ends a transaction of attempts' results in which nothing has come for so long: whoever holds its rows is
#: frozen, and another worker, which has its messages by then, would wait for them.
FROZEN_MS = 3_000

#: How PostgreSQL says that transactions waited for each other, and how often that may happen to one.
DEADLOCK, DEADLOCKS = "40P01", 10


@contextmanager
def write_transaction(*, durable: bool = True) -> Iterator[None]:
    """Run the block in a transaction that writes. Without `durable`, a power cut may undo it after its commit."""
    if durable or connection.in_atomic_block:
        with transaction.atomic():
            yield
    elif connection.vendor == "sqlite":
        with _without_sync(), transaction.atomic():
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
    with _impatience(seconds), _without_sync(), transaction.atomic():
        yield


@contextmanager
def _impatience(seconds: float) -> Iterator[None]:
    """Let SQLite wait no longer than this in the block: half of it in the queue, and half for its own lock."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    with connection.cursor() as cursor:
        [before] = cursor.execute("PRAGMA busy_timeout").fetchone()
    _execute(f"PRAGMA busy_timeout = {round(seconds * 500)}")
    database.patience_seconds = seconds / 2
    try:
        yield
    finally:
        database.patience_seconds = None
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
