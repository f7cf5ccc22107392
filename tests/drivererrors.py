"""Every class of error that the drivers of PostgreSQL, SQLite and Redis raise, as they reach PushHub."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import django.db
import psycopg
import redis.exceptions


def postgresql_errors() -> list[psycopg.Error]:
    """Return an error of each class: one for each SQLSTATE, and those that have none."""
    return [kind("no") for kind in _subclasses(psycopg.Error) if not kind.__name__.startswith("_")]


def sqlite_errors() -> list[sqlite3.Error]:
    """Return an error for each primary result code, of the class that Python raises for it."""
    return [_sqlite_error(code) for code in range(1, 29) if code != sqlite3.SQLITE_NOMEM]


def redis_errors() -> list[redis.RedisError]:
    """Return an error of each class."""
    return [_redis_error(kind) for kind in (redis.RedisError, *_subclasses(redis.RedisError))]


def as_django_raises(error: psycopg.Error | sqlite3.Error) -> django.db.Error:
    """Return Django's error with the driver's as its cause."""
    for name in (kind.__name__ for kind in type(error).__mro__):
        kind = getattr(django.db.utils, name, None)
        if kind is not None:
            wrapped: django.db.Error = kind(*error.args)
            wrapped.__cause__ = error
            return wrapped
    raise AssertionError(f"{error!r} has no class of PEP 249")


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


#: The class that Python raises for a result code of SQLite; for all others, DatabaseError. 7 is a MemoryError.
_SQLITE_CLASSES: dict[type[sqlite3.Error], tuple[int, ...]] = {
    sqlite3.InternalError: (2, 12),
    sqlite3.OperationalError: (1, 3, 4, 5, 6, 8, 9, 10, 13, 14, 15, 16, 17),
    sqlite3.DataError: (18,),
    sqlite3.IntegrityError: (19, 20),
    sqlite3.InterfaceError: (21, 25),
}


def _sqlite_error(code: int) -> sqlite3.Error:
    kinds = (kind for kind, codes in _SQLITE_CLASSES.items() if code in codes)
    error = next(kinds, sqlite3.DatabaseError)("no")
    error.sqlite_errorcode = code
    return error


def _redis_error(kind: type[redis.RedisError]) -> redis.RedisError:
    if issubclass(kind, redis.exceptions.AskError):
        return kind("1 127.0.0.1:6379")
    return kind("no")
