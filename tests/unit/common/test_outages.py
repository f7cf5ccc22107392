"""Which errors of the drivers pass by themselves, and which are errors of PushHub: every class of each driver."""

from __future__ import annotations

import errno
import sqlite3

import django.db.utils
import kombu.exceptions
import psycopg
import psycopg.errors
import pytest
import redis.exceptions

from pushhub.common.outages import REDIS_WORDS, SQLITE, Cause, outage_of, outage_or_raise
from tests.drivererrors import as_django_raises, postgresql_errors, redis_errors, sqlite_errors


def test_every_class_of_postgresqls_errors_is_sorted() -> None:
    """By the class of SQLSTATE, the first two characters, and single ones that differ from their class."""
    outages = {error.sqlstate for error in postgresql_errors() if outage_of(as_django_raises(error))}

    assert {state[:2] for state in outages if state} == {"08", "25", "28", "40", "42", "53", "55", "57", "58", "XX"}
    assert {state for state in outages if state and state[:2] in ("25", "40", "42", "55")} == {
        *("25006", "25P03", "25P04", "40001", "40003", "40P01", "42501", "55006", "55P03")
    }
    # An error without a code is the driver's own: no server has answered.
    without_code = [error for error in postgresql_errors() if not error.sqlstate]
    assert {type(error).__name__ for error in without_code if outage_of(as_django_raises(error))} == {
        *("OperationalError", "InterfaceError", "ConnectionTimeout", "CancellationTimeout", "PipelineAborted")
    }


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("25006", Cause.DATABASE_READ_ONLY),
        ("53100", Cause.DATABASE_FULL),
        ("53300", Cause.DATABASE_BUSY),
        ("57P03", Cause.DATABASE_AWAY),
        ("42501", Cause.DATABASE_REFUSES),
        ("23505", None),
        ("42601", None),
        ("22003", None),
        ("25P02", None),
    ],
)
def test_the_cause_is_that_of_the_longest_code_that_fits(state: str, cause: Cause | None) -> None:
    assert outage_of(as_django_raises(psycopg.errors.lookup(state)("no"))) == cause


def test_every_result_code_of_sqlite_is_sorted() -> None:
    outages = {error.sqlite_errorcode for error in sqlite_errors() if outage_of(as_django_raises(error))}

    assert outages == set(SQLITE)
    # The codes of statements and values that are wrong, and of calls that PushHub must not make.
    assert outages.isdisjoint({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH})
    assert outages.isdisjoint({sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE, sqlite3.SQLITE_TOOBIG})


def test_an_extended_result_code_counts_as_its_primary_one() -> None:
    error = sqlite3.OperationalError("attempt to write a readonly database")
    error.sqlite_errorcode = sqlite3.SQLITE_READONLY_DBMOVED

    assert outage_of(as_django_raises(error)) == Cause.DATABASE_READ_ONLY


def test_errors_of_pythons_own_sqlite_module_are_errors_of_pushhub() -> None:
    for kind in (sqlite3.InterfaceError, sqlite3.OperationalError, sqlite3.ProgrammingError):
        assert outage_of(as_django_raises(kind("Cannot operate on a closed database."))) is None


def test_every_class_of_redis_errors_is_sorted() -> None:
    others = {type(error).__name__ for error in redis_errors() if outage_of(error) is None}

    assert others == {
        *("AskError", "AuthenticationWrongNumberOfArgsError", "ClusterCrossSlotError", "DataError"),
        *("ExecAbortError", "LockError", "LockNotOwnedError", "ModuleError", "MovedError", "NoScriptError"),
        *("NoSuchFieldsetError", "PubSubError", "RedisError", "ResponseError", "WatchError"),
    }


@pytest.mark.parametrize("word", REDIS_WORDS)
@pytest.mark.parametrize("before", ["", "Command # 1 (SET a b) of pipeline caused error: "])
def test_redis_errors_without_a_class_are_known_by_their_first_word(word: str, before: str) -> None:
    assert outage_of(redis.ResponseError(f"{before}{word} and more")) == REDIS_WORDS[word]


@pytest.mark.parametrize("text", ["BUSYKEY Target key name already exists.", "ERR no BUSY here", "WRONGTYPE of a key"])
def test_other_words_are_errors_of_pushhub(text: str) -> None:
    assert outage_of(redis.ResponseError(text)) is None


@pytest.mark.parametrize(
    ("number", "cause"),
    [(errno.ENOSPC, Cause.DISK_FULL), (errno.EROFS, Cause.DISK_READ_ONLY), (errno.ENOENT, None), (errno.EPIPE, None)],
)
def test_a_disk_may_be_what_fails(number: int, cause: Cause | None) -> None:
    assert outage_of(OSError(number, "no")) == cause


def raised(error: BaseException, *, while_handling: BaseException, names_it: bool) -> BaseException:
    try:
        try:
            raise while_handling
        except type(while_handling) as first:
            if names_it:
                raise error from first
            raise error  # noqa: B904
    except type(error) as last:
        return last


def test_an_error_that_was_raised_from_an_outage_is_that_outage() -> None:
    def of(error: BaseException, *, names_it: bool = True) -> Cause | None:
        return outage_of(raised(error, while_handling=redis.ReadOnlyError("no"), names_it=names_it))

    assert of(kombu.exceptions.OperationalError("no")) == Cause.REDIS_READ_ONLY
    assert of(ValueError("no"), names_it=False) is None


def test_what_is_no_outage_is_raised() -> None:
    assert outage_or_raise(redis.TimeoutError("no")) == Cause.REDIS_SILENT
    with pytest.raises(django.db.utils.IntegrityError):
        outage_or_raise(as_django_raises(psycopg.errors.UniqueViolation("no")))
