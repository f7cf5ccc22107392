"""The journal's files: names, folders and locks.

    <folder>/open/<host>-<pid>-<milliseconds>-<number>.journal    being written, or left by a process that died
    <folder>/sealed/dt=2026-11-21/hour=04/<the same>.parquet      a segment, never changed

A writer holds a lock on its file. The kernel releases it when the process ends, and whoever gets the lock then may seal
the file. The path of a segment is derived from the name of its journal, so sealing again after a crash writes the same
file again.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pushhub.common.stores import lock_file

OPEN = "open"
SEALED = "sealed"
JOURNAL_SUFFIX = ".journal"
SEGMENT_SUFFIX = ".parquet"
#: The rollup of the folder holds this lock.
RUNNER_LOCK = "rollup.lock"
#: The host without dots, the process id, the time of opening in ms, and a number.
NAME = re.compile(r"[A-Za-z0-9_]{1,63}-[0-9]+-(?P<opened_ms>[0-9]{13})-[0-9]+")


def journal_name(*, opened_ms: int, number: int) -> str:
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:63] or "host"
    return f"{host}-{os.getpid()}-{opened_ms:013d}-{number}"


def journal_path(folder: Path, name: str) -> Path:
    return folder / OPEN / f"{name}{JOURNAL_SUFFIX}"


def segment_path(folder: Path, name: str) -> Path:
    """Return the path of a journal's segment. Raises ValueError if the name is not that of a journal."""
    match = NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not the name of a journal")
    opened = datetime.fromtimestamp(int(match["opened_ms"]) / 1000, UTC)
    return folder / SEALED / f"dt={opened:%Y-%m-%d}" / f"hour={opened:%H}" / f"{name}{SEGMENT_SUFFIX}"


def is_segment_name(name: str) -> bool:
    return name.endswith(SEGMENT_SUFFIX) and NAME.fullmatch(name.removesuffix(SEGMENT_SUFFIX)) is not None


def opened_ms(name: str) -> int:
    """Return when the journal of a segment was opened. Raises ValueError if the name is not that of a segment."""
    match = NAME.fullmatch(name.removesuffix(SEGMENT_SUFFIX))
    if match is None:
        raise ValueError(f"{name} is not the name of a segment")
    return int(match["opened_ms"])


def journals(folder: Path) -> list[Path]:
    """Return all journals, including those that are being written."""
    return sorted(path for path in (folder / OPEN).glob(f"*{JOURNAL_SUFFIX}") if NAME.fullmatch(path.stem))


def create_locked(path: Path) -> int:
    """Create and lock a journal, and return its handle.

    Between the two, another process may lock the empty journal, take it for that of a dead process and remove it. The
    journal is then created again.
    """
    while True:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink > 0:
            return handle
        os.close(handle)


def runner_lives(folder: Path) -> bool:
    """Return whether a rollup runs on the folder (telemetry/counting/rollup.py)."""
    path = folder / RUNNER_LOCK
    with taken_over(path) as is_free:
        return path.exists() and not is_free


@contextmanager
def taken_over(path: Path) -> Iterator[bool]:
    """Lock a journal, or another file, for the block; yield whether that worked.

    It does if the writer has closed the journal or died, and no other process has sealed it.
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        # A file without a name was sealed between the opening and the lock.
        yield lock_file(handle) and os.fstat(handle).st_nlink > 0
    finally:
        os.close(handle)
