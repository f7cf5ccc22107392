"""The journal of a process: a queue, and a thread that writes its content ten times a second.

Appending never waits, neither for the disk nor for Redis. If the disk cannot be written, the journal stops and raises
an alarm. Events are then counted and dropped, and deliveries go on.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from django.conf import settings

from deliveries.telemetry.journal import alarm, files
from deliveries.telemetry.journal.columns import Rows
from pushhub.common.background import IDLE_SECONDS, BackgroundThread

logger = logging.getLogger(__name__)

#: Events gather for this long before they are written. A process that is killed loses no more than these.
GATHER_SECONDS = 0.1
#: A journal is closed at this age or this number of rows. Another process seals it.
CLOSE_SECONDS = 5.0
CLOSE_ROWS = 20_000
#: Events that may wait for a slow disk.
MAX_WAITING = 200_000
#: Rows of one write, approximately.
BATCH_ROWS = 5_000
RETRY_SECONDS = alarm.REPEAT_SECONDS


class NoSpace(OSError):
    """The disk has less free space than is kept for the database."""


class OpenJournal:
    """A locked file of lines. Every method may raise OSError, and lines that were written before stay readable.

    Nothing is synchronized to the disk. Events survive the death of their process, but a power failure loses the last
    seconds. Only metrics depend on them: messages are in the database.
    """

    def __init__(self, folder: Path, *, number: int, keep_free: int) -> None:
        self.folder = folder
        self.path = files.journal_path(folder, files.journal_name(opened_ms=time.time_ns() // 1_000_000, number=number))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < keep_free:
            raise NoSpace(f"less than {keep_free // 2**20} MB are free on the disk of {folder}")
        self._handle = files.create_locked(self.path)
        self._size = self.rows = 0
        self.opened = time.monotonic()

    def append(self, lines: bytes, rows: int) -> None:
        """Write all lines or none."""
        unwritten = memoryview(lines)
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._handle, unwritten) :]
        except BaseException:
            os.ftruncate(self._handle, self._size)
            os.lseek(self._handle, self._size, os.SEEK_SET)
            raise
        self._size += len(lines)
        self.rows += rows

    def close(self) -> None:
        """Release the lock, so that the journal can be sealed. Remove an empty journal."""
        try:
            if not self.rows:
                self.path.unlink(missing_ok=True)
        finally:
            os.close(self._handle)


class Journal:
    """Appends events to files below `folder`."""

    def __init__(self, folder: Path, *, keep_free: int, close_seconds: float = CLOSE_SECONDS) -> None:
        self._folder = folder
        self._keep_free = keep_free
        self._close_seconds = close_seconds
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._count = 0
        self._ready = threading.Event()
        self._thread = BackgroundThread("journal", self._gather_and_write, at_end=self._end)
        self._open: OpenJournal | None = None
        self._number = 0
        self.trouble = ""
        self.lost = 0
        self._trouble_since = 0.0
        self._retry_at = 0.0

    def append(self, parts: Sequence[Rows]) -> None:
        """Queue events to be written soon.

        They are serialized here, which takes half a microsecond per event. Keeping their objects alive for the thread
        would cost ten times as much.
        """
        count = sum(part.count for part in parts)
        if not count:
            return
        if self._count > MAX_WAITING:
            self.lost += count
            return
        try:
            lines = b"".join([part.line() for part in parts])
        except TypeError:
            self.lost += count
            logger.exception("events of a wrong type are not written to the journal")
            return
        self._waiting.append((count, lines))
        self._count += count
        if not self._ready.is_set():
            self._ready.set()
        self._thread.start_once()

    def close(self, timeout: float = 10.0) -> None:
        """Write the queue and stop the thread."""
        self._thread.stopping.set()
        self._ready.set()
        self._thread.stop(timeout=timeout)

    def _gather_and_write(self) -> None:
        self._ready.wait(timeout=min(self._pause(), IDLE_SECONDS))
        self._thread.stopping.wait(GATHER_SECONDS)
        self._ready.clear()
        self._turn()

    def _end(self) -> None:
        try:
            self._turn()
        except Exception:
            logger.exception("the last events are written in a second try")
            self._turn()
        finally:
            self._close()

    def _pause(self) -> float:
        """Return for how many seconds there is nothing to do unless an event comes."""
        if self._open is not None:
            return max(self._open.opened + self._close_seconds - time.monotonic(), 0)
        return max(self._retry_at - time.monotonic(), 0) if self.trouble else IDLE_SECONDS

    def _turn(self) -> None:
        try:
            self._write_waiting()
            if self._open is not None and self._is_due(self._open):
                self._close()
        except OSError as error:
            self._stand_still(error)

    def _write_waiting(self) -> None:
        while self._waiting:
            count, texts = 0, []
            while self._waiting and count < BATCH_ROWS:
                number, lines = self._waiting.popleft()
                self._count -= number
                count += number
                texts.append(lines)
            if self.trouble and time.monotonic() < self._retry_at:
                self.lost += count
                continue
            try:
                self._writer().append(b"".join(texts), count)
            except OSError:
                self.lost += count
                raise
            except Exception:
                # The cause is unknown, so the events are written again later.
                self._waiting.appendleft((count, b"".join(texts)))
                self._count += count
                raise
            self._go_on()
        # Threads add to the count without a lock and may lose an addition. This corrects the error.
        self._count = 0
        if self.trouble and time.monotonic() >= self._retry_at:
            self._writer()
            self._go_on()

    def _writer(self) -> OpenJournal:
        if self._open is None or self._is_due(self._open):
            self._close()
            self._number += 1
            self._open = OpenJournal(self._folder, number=self._number, keep_free=self._keep_free)
        return self._open

    def _is_due(self, journal: OpenJournal) -> bool:
        return journal.rows >= CLOSE_ROWS or time.monotonic() - journal.opened >= self._close_seconds

    def _close(self) -> None:
        journal, self._open = self._open, None
        if journal is not None:
            journal.close()

    def _stand_still(self, error: OSError) -> None:
        with suppress(OSError):
            self._close()
        reason = error.strerror or str(error)
        if not self.trouble:
            self._trouble_since = time.time()
            logger.error("the journal has stopped, deliveries go on: %s (%s)", reason, self._folder)
        self.trouble = reason
        self._retry_at = time.monotonic() + RETRY_SECONDS
        alarm.sound(reason=reason, since=self._trouble_since, lost=self.lost)

    def _go_on(self) -> None:
        if self.trouble or self.lost:
            logger.warning("the journal goes on; %d events were not written down", self.lost)
            self.trouble, self.lost = "", 0
            alarm.clear()


def journal() -> Journal | None:
    """Return the journal of this process; None if PUSHHUB_JOURNAL is off."""
    return _journal_of(os.getpid(), settings.JOURNAL) if settings.JOURNAL else None


@cache
def _journal_of(_pid: int, folder: str) -> Journal:
    """Return the journal of a process. A fork has the queue of its parent but not the thread, so it needs its own."""
    process_journal = Journal(Path(folder), keep_free=settings.JOURNAL_FREE_MB * 2**20)
    atexit.register(process_journal.close)
    return process_journal
