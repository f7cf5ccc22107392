"""Outages: why the database, Redis or a disk can't be used now. An outage passes, and the same call succeeds later.

Every other error of the drivers is an error of PushHub: a statement that is wrong, a value that doesn't fit, a key of
another type. Waiting doesn't cure it.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from enum import StrEnum

import redis
from django.db import Error
from redis import exceptions


class Cause(StrEnum):
    """What can't be used, and why. Logs, `/readyz` and the console show these words."""

    DATABASE_AWAY = "the database cannot be reached"
    DATABASE_READ_ONLY = "the database is read-only"
    DATABASE_FULL = "the database has no disk space"
    DATABASE_BUSY = "the database is too busy"
    DATABASE_REFUSES = "the database refuses PushHub's user"
    DATABASE_FAILS = "the database fails"
    REDIS_AWAY = "Redis cannot be reached"
    REDIS_SILENT = "Redis does not answer"
    REDIS_READ_ONLY = "Redis is read-only"
    REDIS_FULL = "Redis has no memory left"
    REDIS_BUSY = "Redis is too busy"
    REDIS_REFUSES = "Redis refuses PushHub's user"
    REDIS_DISK = "Redis cannot save to its disk"
    REDIS_REPLICAS = "Redis has too few replicas"
    DISK_FULL = "the disk is full"
    DISK_READ_ONLY = "the disk is read-only"
    DISK_FAILS = "the disk fails"


#: By SQLSTATE or the beginning of one; the longest that fits counts (PostgreSQL's documentation, "Error Codes").
POSTGRESQL = {
    "08": Cause.DATABASE_AWAY,
    "25006": Cause.DATABASE_READ_ONLY,
    "25P03": Cause.DATABASE_BUSY,  # the server ended a transaction that was idle or took too long
    "25P04": Cause.DATABASE_BUSY,
    "28": Cause.DATABASE_REFUSES,
    "40001": Cause.DATABASE_BUSY,  # transactions that were in each other's way
    "40003": Cause.DATABASE_AWAY,
    "40P01": Cause.DATABASE_BUSY,
    "42501": Cause.DATABASE_REFUSES,
    "53": Cause.DATABASE_BUSY,
    "53100": Cause.DATABASE_FULL,
    "55006": Cause.DATABASE_BUSY,
    "55P03": Cause.DATABASE_BUSY,
    "57": Cause.DATABASE_AWAY,
    "57014": Cause.DATABASE_BUSY,
    "58": Cause.DATABASE_FAILS,
    "XX": Cause.DATABASE_FAILS,
}
#: By primary result code (SQLite's documentation, "Result and Error Codes"). 1 is that of a statement that is wrong.
SQLITE = {
    3: Cause.DATABASE_REFUSES,
    5: Cause.DATABASE_BUSY,
    6: Cause.DATABASE_BUSY,
    8: Cause.DATABASE_READ_ONLY,
    9: Cause.DATABASE_BUSY,
    10: Cause.DATABASE_FAILS,
    11: Cause.DATABASE_FAILS,
    13: Cause.DATABASE_FULL,
    14: Cause.DATABASE_AWAY,
    15: Cause.DATABASE_BUSY,
    22: Cause.DATABASE_FULL,
    26: Cause.DATABASE_FAILS,
}
#: The first class that fits counts.
REDIS = (
    ((exceptions.BusyLoadingError, exceptions.TryAgainError), Cause.REDIS_BUSY),
    (
        (exceptions.AuthenticationError, exceptions.AuthorizationError, exceptions.ExternalAuthProviderError),
        Cause.REDIS_REFUSES,
    ),
    (exceptions.NoPermissionError, Cause.REDIS_REFUSES),
    (exceptions.ReadOnlyError, Cause.REDIS_READ_ONLY),
    (exceptions.OutOfMemoryError, Cause.REDIS_FULL),
    (exceptions.ClusterError, Cause.REDIS_AWAY),
    (exceptions.TimeoutError, Cause.REDIS_SILENT),
    ((exceptions.ConnectionError, exceptions.InvalidResponse), Cause.REDIS_AWAY),
)
#: By the first word of Redis' answer, for errors to which redis-py gives no class of their own. In a pipeline, redis-py
#: puts a few words in front of it.
REDIS_WORDS = {
    "BUSY": Cause.REDIS_BUSY,
    "MISCONF": Cause.REDIS_DISK,
    "NOREPLICAS": Cause.REDIS_REPLICAS,
    "UNBLOCKED": Cause.REDIS_READ_ONLY,  # it has just become a replica
    "UNKILLABLE": Cause.REDIS_BUSY,
}
_REDIS_WORD = re.compile(rf"(?:^|caused error: )({'|'.join(REDIS_WORDS)}) ")
DISK = {
    errno.EDQUOT: Cause.DISK_FULL,
    errno.EFBIG: Cause.DISK_FULL,
    errno.EIO: Cause.DISK_FAILS,
    errno.ENOSPC: Cause.DISK_FULL,
    errno.EROFS: Cause.DISK_READ_ONLY,
}


def outage_of(error: BaseException | None) -> Cause | None:
    """Return the cause if the error is an outage, or was raised from one; None for any other error."""
    while error is not None:
        cause = _cause_of(error)
        if cause is not None or isinstance(error, Error):
            return cause
        error = error.__cause__
    return None


def outage_or_raise(error: BaseException) -> Cause:
    """Return the cause of an outage. Raises any other error."""
    cause = outage_of(error)
    if cause is None:
        raise error
    return cause


def _cause_of(error: BaseException) -> Cause | None:
    if isinstance(error, Error):
        return _of_database(error, error.__cause__)
    if isinstance(error, redis.RedisError):
        return _of_redis(error)
    if isinstance(error, OSError) and error.errno is not None:
        return DISK.get(error.errno)
    return None


def _of_database(error: Error, raised_by_driver: BaseException | None) -> Cause | None:
    """Classify an error of Django, whose cause is the driver's error."""
    if isinstance(raised_by_driver, sqlite3.Error):
        # Without a code the error is one of Python's module, about its caller.
        return SQLITE.get(getattr(raised_by_driver, "sqlite_errorcode", 1) & 0xFF)
    state = getattr(raised_by_driver, "sqlstate", None)
    if state is None:
        # No server has answered. The names are those of PEP 249, which all drivers have.
        is_away = type(error).__name__ in ("OperationalError", "InterfaceError")
        return Cause.DATABASE_AWAY if is_away else None
    return next((POSTGRESQL[state[:length]] for length in (5, 2) if state[:length] in POSTGRESQL), None)


def _of_redis(error: redis.RedisError) -> Cause | None:
    for kinds, cause in REDIS:
        if isinstance(error, kinds):
            return cause
    word = _REDIS_WORD.search(str(error)) if isinstance(error, redis.ResponseError) else None
    return REDIS_WORDS[word[1]] if word is not None else None
