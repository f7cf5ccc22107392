"""Columns and indexes are added while others read and write the table (pushhub/common/migrations.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connection, connections, models
from django.db.migrations.operations import CreateModel
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from pushhub.common.migrations import AddColumn, AddIndexOnline
from tests.databases import execute

pytestmark = pytest.mark.django_db(transaction=True)

TABLE = "deliveries_ware"
COLUMN = AddColumn("ware", "weight", models.IntegerField(db_default=7))
INDEX = AddIndexOnline("ware", models.Index(fields=["name"], name="ware_name"))


@pytest.fixture
def before() -> Iterator[ProjectState]:
    """A table with a row, and the state of the migrations that have made it."""
    fields = [("id", models.BigAutoField(primary_key=True)), ("name", models.TextField())]
    made = apply(CreateModel("Ware", fields), ProjectState())
    execute(connection, f"INSERT INTO {TABLE} (name) VALUES ('old')")
    yield made
    execute(connection, f"DROP TABLE {TABLE}")


def apply(operation: Operation, state: ProjectState) -> ProjectState:
    """Apply an operation to the database as a migration does, and return the state after it."""
    after = state.clone()
    operation.state_forwards("deliveries", after)
    with connection.schema_editor(atomic=operation.atomic is not False) as editor:
        operation.database_forwards("deliveries", editor, state, after)
    return after


def rows(statement: str) -> list[tuple[object, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]


def test_a_column_has_its_default_in_old_rows_and_in_those_of_the_previous_release(before: ProjectState) -> None:
    apply(COLUMN, before)
    execute(connection, f"INSERT INTO {TABLE} (name) VALUES ('of the previous release')")
    assert rows(f"SELECT name, weight FROM {TABLE} ORDER BY id") == [("old", 7), ("of the previous release", 7)]


def test_sqlite_adds_a_column_without_copying_the_table(before: ProjectState) -> None:
    if connection.vendor != "sqlite":
        return  # PostgreSQL never copies it
    where = f"SELECT rootpage FROM sqlite_master WHERE name = '{TABLE}'"
    page = rows(where)
    apply(COLUMN, before)
    assert rows(where) == page


def test_while_a_long_transaction_reads_the_table_others_write_although_a_column_is_to_come(
    before: ProjectState,
) -> None:
    """PostgreSQL would make each statement wait behind the one that waits for the long transaction."""
    if connection.vendor != "postgresql":
        return  # SQLite's readers keep nobody waiting
    reader, writer = connections["default"].copy(), connections["default"].copy()
    # Given a transaction that has read the table
    execute(reader, "BEGIN")
    execute(reader, f"SELECT count(*) FROM {TABLE}")
    # When a migration adds a column
    migrating = threading.Thread(target=lambda: (apply(COLUMN, before), connection.close()))
    migrating.start()
    try:
        # Then others write as long as the column has to wait: each write that it holds up goes on
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        execute(writer, "SET lock_timeout = '60s'")
        for _ in range(2):
            while rows(waiting) == [(0,)]:
                assert migrating.is_alive()
            execute(writer, f"INSERT INTO {TABLE} (name) VALUES ('new')")
        assert migrating.is_alive()
    finally:
        execute(reader, "COMMIT")
        migrating.join()
        reader.close()
        writer.close()
    assert rows(f"SELECT count(*) FROM {TABLE} WHERE weight = 7") == [(3,)]


def test_an_index_takes_the_place_of_one_that_an_interrupted_migration_has_left(before: ProjectState) -> None:
    if connection.vendor != "postgresql":
        return  # SQLite makes an index in one transaction
    apply(INDEX, before)
    execute(connection, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ware_name'::regclass")
    apply(INDEX, before)
    assert rows("SELECT indisvalid FROM pg_index WHERE indexrelid = 'ware_name'::regclass") == [(True,)]


def test_an_index_is_made(before: ProjectState) -> None:
    apply(INDEX, before)
    with connection.cursor() as cursor:
        assert "ware_name" in connection.introspection.get_constraints(cursor, TABLE)
