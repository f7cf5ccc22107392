"""Emptying the database after a test that commits.

Django's flush deletes every permission and content type and creates them again, 50 ms of CPU after each of thousands of
tests, and its TRUNCATE takes PostgreSQL 100 ms however little is in the tables.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

#: Tables whose rows come from migrations and that no test changes.
UNCHANGED = frozenset({"django_content_type", "auth_permission"})
#: Deleted rows take room in PostgreSQL's tables, as autovacuum is off. Every hundredth time, TRUNCATE frees it.
TRUNCATE_EVERY = 100

_turns = itertools.count(1)


def tables_empty(connection: BaseDatabaseWrapper) -> None:
    """Delete every row of the tables whose rows tests make, in one transaction."""
    tables = _tables(connection.alias)
    deletes = [f"DELETE FROM {table}" for table in tables]
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.executescript("; ".join(["BEGIN IMMEDIATE", *deletes, "COMMIT"]))
        elif next(_turns) % TRUNCATE_EVERY == 0:
            cursor.execute(f"TRUNCATE {', '.join(tables)}")
        else:
            # A process that still writes after the test has to wait, and its rows then refer to rows that are gone.
            lock = f"LOCK TABLE {', '.join(tables)} IN SHARE ROW EXCLUSIVE MODE"
            cursor.execute("; ".join([lock, *deletes]))


@functools.cache
def _tables(alias: str) -> list[str]:
    """Return the quoted names of the tables to empty, which are the same after each test."""
    connection = connections[alias]
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    return [connection.ops.quote_name(name) for name in names if name not in UNCHANGED]


def fixture_teardown(case: Any) -> None:
    """Empty the database; TransactionTestCase calls this after each test in place of the command `flush`."""
    for alias in case._databases_names(include_mirrors=False):
        tables_empty(connections[alias])


def replace_flush() -> None:
    TransactionTestCase._fixture_teardown = fixture_teardown
