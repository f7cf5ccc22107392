"""The journal's files: names, folders, and who may touch them.

    <folder>/open/<host>-<pid>-<milliseconds>-<number>.journal    being written, or left by a process that died
    <folder>/sealed/dt=2026-11-21/hour=04/<the same>.parquet      a segment, never changed

A writer holds a lock on its file, which the kernel lets go with the process: who gets the lock may seal the file. A
segment's path follows from its journal's name alone, so that sealing again after a crash writes the same file again.
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

OPEN = "open"
SEALED = "sealed"
JOURNAL_SUFFIX = ".journal"
SEGMENT_SUFFIX = ".parquet"
#: Held by the one rollup of the folder.
RUNNER_LOCK = "rollup.lock"
#: A name of ours: the host without dots, the process, when the journal was opened (ms), and its number.
NAME = re.compile(r"[A-Za-z0-9_]{1,63}-[0-9]+-(?P<opened_ms>[0-9]{13})-[0-9]+")


def journal_name(*, opened_ms: int, number: int) -> str:
    host = re.sub(r"[^A-Za-z0-9]", "_", socket.gethostname())[:63] or "host"
    return f"{host}-{os.getpid()}-{opened_ms:013d}-{number}"


def journal_path(folder: Path, name: str) -> Path:
    return folder / OPEN / f"{name}{JOURNAL_SUFFIX}"


def segment_path(folder: Path, name: str) -> Path:
    """Where the journal of that name is sealed to; ValueError for a name that is none of ours."""
    found = NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is no journal of ours")
    opened = datetime.fromtimestamp(int(found["opened_ms"]) / 1000, UTC)
    return folder / SEALED / f"dt={opened:%Y-%m-%d}" / f"hour={opened:%H}" / f"{name}{SEGMENT_SUFFIX}"


def is_segment_name(name: str) -> bool:
    return name.endswith(SEGMENT_SUFFIX) and NAME.fullmatch(name.removesuffix(SEGMENT_SUFFIX)) is not None


def journals(folder: Path) -> list[Path]:
    """All journals, those being written among them."""
    return sorted((folder / OPEN).glob(f"*{JOURNAL_SUFFIX}"))


def lock(handle: int) -> bool:
    """Make the open file ours; false while somebody lives who has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def runner_lives(folder: Path) -> bool:
    """Whether a rollup holds the folder (pipeline/counting/rollup.py)."""
    try:
        handle = os.open(folder / RUNNER_LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not lock(handle)
    finally:
        os.close(handle)


@contextmanager
def taken_over(path: Path) -> Iterator[bool]:
    """Whether a journal is nobody's and, for the block, ours: its writer died, and nobody else has sealed it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        # Without a name any more, it was sealed between our look and our lock.
        yield lock(handle) and os.fstat(handle).st_nlink > 0
    finally:
        os.close(handle)
