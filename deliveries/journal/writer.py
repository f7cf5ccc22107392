"""The file a process appends to: one write for each batch, nothing half-written left behind by a full disk."""

from __future__ import annotations

import os
import time
from pathlib import Path

from deliveries.journal import files


class NoSpace(OSError):
    """The disk has less room than is kept for the database."""


class OpenJournal:
    """Lines under a lock. Every method may raise OSError; what was written before stays readable.

    Nothing is synchronised to the disk: events outlive the death of a process, and the last seconds of them are lost
    with the power. Messages are not kept here.
    """

    def __init__(self, folder: Path, *, number: int, keep_free: int) -> None:
        self.folder = folder
        self.path = files.journal_path(folder, files.journal_name(opened_ms=time.time_ns() // 1_000_000, number=number))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if free_bytes(folder) < keep_free:
            raise NoSpace(f"less than {keep_free // 2**20} MB are free on the disk of {folder}")
        self._handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        files.lock(self._handle)
        self._size = self.rows = 0
        self.opened = time.monotonic()

    def append(self, lines: bytes, rows: int) -> None:
        """Write them, all or none."""
        left = memoryview(lines)
        try:
            while left:
                left = left[os.write(self._handle, left) :]
        except BaseException:
            os.ftruncate(self._handle, self._size)
            os.lseek(self._handle, self._size, os.SEEK_SET)
            raise
        self._size += len(lines)
        self.rows += rows

    def close(self) -> None:
        """Let the lock go, and with it the journal, to whoever seals it. An empty journal goes with it."""
        if not self.rows:
            self.path.unlink(missing_ok=True)
        os.close(self._handle)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
