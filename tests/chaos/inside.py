"""What a storm changes inside of a process of PushHub that it starts: its clock, and a bug that it plants.

The product's code knows nothing of this: `Member` (stand.py) has a forked process run `prepare` before its module.
"""

from __future__ import annotations

import mmap
import struct
import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

import django.utils.timezone

from pushhub.common import clock

#: A clock file holds by how many seconds the clock of its process is wrong.
OFFSET = struct.Struct("d")


def clock_set(path: Path, seconds: float) -> None:
    """Set the clock of the process that uses this file. It must not be truncated, as the process has mapped it."""
    if not path.exists():
        path.write_bytes(OFFSET.pack(seconds))
        return
    with path.open("r+b") as file:
        file.write(OFFSET.pack(seconds))


def prepare(clock_file: str, bugs: tuple[str, ...]) -> None:
    """Make this process tell the time by a clock file, and plant bugs in it."""
    _replace_clock(clock_file)
    if bugs:
        from tests.chaos.planted import BUGS

        for bug in bugs:
            BUGS[bug].plant()


def _replace_clock(path: str) -> None:
    """Replace the functions by which Python code tells the time of day; time.monotonic stays right."""
    with open(path, "rb") as file:  # noqa: PTH123
        offset = mmap.mmap(file.fileno(), OFFSET.size, access=mmap.ACCESS_READ)
    right, right_ns = time.time, time.time_ns

    def wrong() -> float:
        return right() + float(OFFSET.unpack_from(offset)[0])

    class WrongDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.fromtimestamp(wrong(), tz)

    time.time = wrong
    time.time_ns = lambda: right_ns() + int(OFFSET.unpack_from(offset)[0] * 1e9)
    clock.datetime = WrongDatetime
    django.utils.timezone.datetime = WrongDatetime
