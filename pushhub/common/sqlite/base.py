"""Django's SQLite, whose transactions queue for a write lock.

SQLite has a single writer. A connection that finds it busy sleeps and tries again, up to 100 ms at a time and in no
order, so under load one process starves another. Therefore transactions queue for the lock of a file first, where the
kernel wakes the next at once. All of them do, as one beside the queue would rarely get its turn.
"""

from __future__ import annotations

import fcntl
import os
import time

from django.db.backends.sqlite3 import base

from pushhub.common.stores import lock_file

#: How often an impatient transaction asks for the file's lock, which can't be waited for with a limit.
POLL_SECONDS = 0.002


class DatabaseWrapper(base.DatabaseWrapper):
    #: How long a transaction waits in the queue before it tries without; None is without limit.
    patience_seconds: float | None = None
    _lock: int | None = None

    def _start_transaction_under_autocommit(self) -> None:
        try:
            self._queue()
            super()._start_transaction_under_autocommit()  # type: ignore[misc]  # the stubs lack such methods
        except BaseException:
            self._leave()
            raise

    def _set_autocommit(self, autocommit: bool) -> None:
        """End what is left of a transaction: Django calls this after each, whatever has become of its commit."""
        try:
            super()._set_autocommit(autocommit)  # type: ignore[misc]
        finally:
            self._leave()

    def _close(self) -> None:
        try:
            super()._close()  # type: ignore[misc]
        finally:
            self._leave()

    def _queue(self) -> None:
        path = f"{self.settings_dict['NAME']}.turn"  # earlier versions use this name too
        try:
            # A handle of the transaction's own: the lock belongs to it, so those who share one would not wait.
            self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            return  # SQLite says what is wrong with the disk
        if self.patience_seconds is None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            return
        ends = time.monotonic() + self.patience_seconds
        while not lock_file(self._lock) and time.monotonic() < ends:
            time.sleep(POLL_SECONDS)

    def _leave(self) -> None:
        handle, self._lock = self._lock, None
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has the handle, too
            os.close(handle)
