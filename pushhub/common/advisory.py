"""Locks that PostgreSQL keeps for a process of whatever machine, and that end with its connection.

A lock belongs to a transaction, because a pooler gives each transaction another connection of PostgreSQL. The process
has to show that it lives: the lock of a killed, cut off or frozen one is free after FROZEN_SECONDS. A frozen process
that goes on does not know that, so what it writes then has to be refused for a reason of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

from django.db import DEFAULT_DB_ALIAS, Error, connections

logger = logging.getLogger(__name__)

FROZEN_SECONDS = 10
#: How often a holder shows that it lives.
LIVELY_SECONDS = 2.0
POLL_SECONDS = 0.2


def lock_key(name: str) -> int:
    """Return the number by which PostgreSQL knows the lock of this name."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


@contextmanager
def advisory_lock_tried(name: str, *, shared: bool = False, using: str = DEFAULT_DB_ALIAS) -> Iterator[bool]:
    """Hold the lock of this name for the block, however long it takes. Yield false if another process has it."""
    kind = "_shared" if shared else ""
    # Django may close and reopen the usual connection.
    session = connections[using].copy()
    session.inc_thread_sharing()
    ended = threading.Event()
    living = threading.Thread(target=_live, args=(session, name, ended), name="advisory-lock", daemon=True)
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{FROZEN_SECONDS}s'")
            cursor.execute(f"SELECT pg_try_advisory_xact_lock{kind}(%s)", [lock_key(name)])
            [is_held] = cursor.fetchone()
        living.start()
        yield bool(is_held)
    finally:
        ended.set()
        if living.ident is not None:
            living.join()
        with suppress(Error):  # the session may be lost
            session.rollback()  # a pooler would end the transaction later
        session.close()


@contextmanager
def advisory_lock(name: str, *, shared: bool = False, using: str = DEFAULT_DB_ALIAS) -> Iterator[None]:
    """Wait for the lock of this name, and hold it for the block.

    It is asked for again and again: CREATE INDEX CONCURRENTLY of its holder would wait for a statement that waits.
    """
    while True:
        with advisory_lock_tried(name, shared=shared, using=using) as is_held:
            if is_held:
                yield
                return
        time.sleep(POLL_SECONDS)


def _live(session: Any, name: str, ended: threading.Event) -> None:
    while not ended.wait(LIVELY_SECONDS):
        try:
            with session.cursor() as cursor:
                cursor.execute("SELECT 1")
        except Error as error:
            logger.warning("the lock %r is lost: another process may have it", name, exc_info=error)
            return
