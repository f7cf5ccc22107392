"""The journal of a process: a queue, and a thread that writes what is in it, some times a second.

Who appends never waits: for Arrow, for the disk or for Redis. When the disk takes no more, the journal stands still
with an alarm, events are counted and let go, and deliveries go on.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from deliveries.journal import alarm
from deliveries.journal.columns import Events, record_batch
from deliveries.journal.sealing import seal

if TYPE_CHECKING:
    from deliveries.journal.writer import OpenJournal

logger = logging.getLogger(__name__)

#: Events gather for so long before they are written; a process that is killed loses no more than those.
GATHER_SECONDS = 0.1
#: A journal is sealed when it is so old, or has so many rows.
SEAL_SECONDS = 8.0
SEAL_ROWS = 20_000
#: Events that may wait for a slow disk.
MAX_WAITING = 200_000
#: A batch has about so many rows.
BATCH_ROWS = 5_000
RETRY_SECONDS = alarm.REPEAT_SECONDS

#: Called in the journal's thread, so that whoever has events to tell need not spend time on columns.
Maker = Callable[[], Sequence[Events]]


class Journal:
    """Appends events to files below `folder` and seals them."""

    def __init__(self, folder: Path, *, keep_free: int, seal_seconds: float = SEAL_SECONDS) -> None:
        self._folder = folder
        self._keep_free = keep_free
        self._seal_seconds = seal_seconds
        self._waiting: deque[tuple[int, Maker]] = deque()
        self._count = 0
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._open: OpenJournal | None = None
        self._number = 0
        self.trouble = ""
        self.lost = 0
        self._trouble_since = 0.0
        self._retry_at = 0.0

    def append(self, count: int, make: Maker) -> None:
        """Write down `count` events, which `make` returns when the journal's thread asks for them."""
        if self._count > MAX_WAITING:
            self.lost += count
            return
        self._waiting.append((count, make))
        self._count += count
        if not self._ready.is_set():
            self._ready.set()
        if self._thread is None:
            self._start()

    def close(self, timeout: float = 10.0) -> None:
        """Write and seal what is there."""
        self._stopping.set()
        self._ready.set()
        if self._thread is not None:
            self._thread.join(timeout=timeout)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._ready.wait(timeout=self._pause())
            self._stopping.wait(GATHER_SECONDS)
            self._ready.clear()
            self._turn()
        self._turn()
        self._close()

    def _pause(self) -> float | None:
        """How long there is nothing to do unless an event comes; None is for ever."""
        if self._open is not None:
            return max(self._open.opened + self._seal_seconds - time.monotonic(), 0)
        return max(self._retry_at - time.monotonic(), 0) if self.trouble else None

    def _turn(self) -> None:
        try:
            self._write_waiting()
            if self._open is not None and self._is_due(self._open):
                self._close()
        except OSError as error:
            self._stand_still(error)
        except Exception:
            # Whatever it is, it must neither end this thread nor let events pile up.
            logger.exception("events could not be journalled")

    def _write_waiting(self) -> None:
        while self._waiting:
            count, parts = 0, []
            while self._waiting and count < BATCH_ROWS:
                number, make = self._waiting.popleft()
                self._count -= number
                count += number
                parts.append(make)
            if self.trouble and time.monotonic() < self._retry_at:
                self.lost += count
                continue
            try:
                self._writer().append(record_batch([events for make in parts for events in make()]))
            except BaseException:
                self.lost += count
                raise
            self._go_on()
        # Several threads add to it and may get in each other's way: what went wrong ends here.
        self._count = 0
        if self.trouble and time.monotonic() >= self._retry_at:
            self._writer()
            self._go_on()

    def _writer(self) -> OpenJournal:
        from deliveries.journal.writer import OpenJournal

        if self._open is None or self._is_due(self._open):
            self._close()
            self._number += 1
            self._open = OpenJournal(self._folder, number=self._number, keep_free=self._keep_free)
        return self._open

    def _is_due(self, journal: OpenJournal) -> bool:
        return journal.rows >= SEAL_ROWS or time.monotonic() - journal.opened >= self._seal_seconds

    def _close(self) -> None:
        """Seal what is open. Where that fails the file stays, and maintenance seals it when it can."""
        journal, self._open = self._open, None
        if journal is None:
            return
        try:
            if journal.rows:
                seal(self._folder, journal.path)
        except OSError as error:
            self._stand_still(error)
        finally:
            journal.close()

    def _stand_still(self, error: OSError) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
        reason = error.strerror or str(error)
        if not self.trouble:
            self._trouble_since = time.time()
            logger.error("the journal stands still, deliveries go on: %s (%s)", reason, self._folder)
        self.trouble = reason
        self._retry_at = time.monotonic() + RETRY_SECONDS
        alarm.sound(reason=reason, since=self._trouble_since, lost=self.lost)

    def _go_on(self) -> None:
        if self.trouble:
            logger.warning("the journal goes on; %d events were not written down", self.lost)
            self.trouble, self.lost = "", 0
            alarm.clear()


def journal() -> Journal | None:
    """This process' journal; None where journals are off."""
    return _journal_of(os.getpid(), settings.JOURNAL) if settings.JOURNAL else None


@cache
def _journal_of(_pid: int, folder: str) -> Journal:
    """By process: a fork has the queue of its parent but not the thread."""
    made = Journal(Path(folder), keep_free=settings.JOURNAL_FREE_MB * 2**20)
    atexit.register(made.close)
    return made
