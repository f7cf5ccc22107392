"""The file to which a process appends: one write per batch. A full disk leaves no half-written batch."""

from __future__ import annotations

import os
import time
from pathlib import Path

from deliveries.telemetry.journal import files


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
        if free_bytes(folder) < keep_free:
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


def free_bytes(folder: Path) -> int:
    """Return the free space of a folder's disk."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize
