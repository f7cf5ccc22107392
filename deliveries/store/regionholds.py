"""Which region's Redis and workers have the messages of each region, where each region has a Redis of its own.

A row of the database says which region holds a region: usually itself, and another one after it was cut off or has
died. The new holder begins to act SETTLE_SECONDS after the change of the row, and no process acts longer than
SURE_SECONDS after it has read the row last. So two never act for a region at the same time, whatever becomes of the
network: a process that can't read the database acts for nobody.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from django.conf import settings

from deliveries.store.sql import execute, fetch_rows

#: For how long a process may use what it has read, and how soon it reads again.
SURE_SECONDS, READ_SECONDS = 5.0, 1.0
#: How long a new holder waits before it acts: the rest is for a commit that takes long.
SETTLE_SECONDS = 2 * SURE_SECONDS


class Hold(NamedTuple):
    """A row: the seconds since the holder renewed it, since it changed, and since the region asked for itself."""

    region: str
    holder: str
    renewed_s: float
    held_s: float
    wanted_s: float | None


_lock = threading.Lock()
_held: frozenset[str] = frozenset()
_sure_until = _read_again_at = 0.0


def is_alone() -> bool:
    """Return whether all regions have the same Redis, so that nobody else can hold any."""
    return not settings.REGION_REDIS


def holds_now(region: str) -> bool:
    """Return whether this region holds that one, by what this process has read lately. Doesn't wait."""
    return is_alone() or (region in _held and time.monotonic() < _sure_until)


def holds(region: str) -> bool:
    """Return whether this region holds that one. Reads the database if that was long ago; may raise its errors."""
    if is_alone():
        return True
    if time.monotonic() >= _read_again_at and _lock.acquire(blocking=time.monotonic() >= _sure_until):
        try:
            if time.monotonic() >= _read_again_at:
                read_holds()
        finally:
            _lock.release()
    return holds_now(region)


def read_holds() -> list[Hold]:
    """Read all rows, and note which regions this one holds."""
    global _held, _sure_until, _read_again_at
    asked_at = time.monotonic()
    rows = [Hold(*row) for row in fetch_rows(_READ, [])]
    _held = frozenset(row.region for row in rows if row.holder == settings.REGION and row.held_s >= SETTLE_SECONDS)
    _sure_until, _read_again_at = asked_at + SURE_SECONDS, asked_at + READ_SECONDS
    return rows


def held_regions() -> frozenset[str]:
    """Return the regions that this one held when the rows were read last."""
    return _held


_READ = """SELECT region, holder, EXTRACT(EPOCH FROM now() - renewed_at)::float,
    EXTRACT(EPOCH FROM now() - held_since)::float, EXTRACT(EPOCH FROM now() - wanted_at)::float
    FROM deliveries_regionhold"""


def make_hold(region: str) -> None:
    """Let a region that has no row hold itself from now on."""
    execute(
        "INSERT INTO deliveries_regionhold (region, holder, renewed_at, held_since)"
        " VALUES (%s, %s, now(), 'epoch') ON CONFLICT DO NOTHING",
        [region, region],
    )


def renew_hold(hold: Hold) -> None:
    execute(
        "UPDATE deliveries_regionhold SET renewed_at = now() WHERE region = %s AND holder = %s",
        [hold.region, hold.holder],
    )


def pass_hold(hold: Hold, to: str, *, silent_seconds: float = 0.0) -> bool:
    """Change the holder, unless it has changed or was renewed in these seconds; return whether it was changed."""
    return bool(
        execute(
            "UPDATE deliveries_regionhold SET holder = %s, renewed_at = now(), held_since = clock_timestamp(),"
            " wanted_at = NULL WHERE region = %s AND holder = %s AND renewed_at <= now() - make_interval(secs => %s)",
            [to, hold.region, hold.holder, silent_seconds],
        )
    )


def ask_for_hold(region: str) -> None:
    execute("UPDATE deliveries_regionhold SET wanted_at = now() WHERE region = %s", [region])
