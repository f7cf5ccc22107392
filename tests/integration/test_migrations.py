"""Migrations make the tables of the models, and carry the data of older versions over.

All other tests run on tables that Django makes from the models, which takes an eighth of the time.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tests.databases import execute, other_database
from tests.integration.test_backup import contents

pytestmark = pytest.mark.django_db(transaction=True)

#: The ids of some of Django's own tables are wider by the migrations than by the models.
OWN_TABLE = re.compile("(deliveries|subscriptions)_").match
#: Databases that older versions made by their migrations, with two tenants of tests/tenants.py: a dump for each vendor.
OLD_DATABASES = Path(__file__).parents[1] / "data" / "databases"


@pytest.fixture
def empty_database(settings: Any, tmp_path: Path) -> Iterator[BaseDatabaseWrapper]:
    """Another database, without tables, in place of the tests' one."""
    settings.MIGRATION_MODULES = {}
    with other_database(tmp_path, name="migrated") as other:
        yield other


def structure(database: BaseDatabaseWrapper) -> dict[str, object]:
    """Describe each of PushHub's tables: its columns, and its indexes and constraints without their names."""
    described: dict[str, object] = {}
    inspect = database.introspection
    with database.cursor() as cursor:
        for table in filter(OWN_TABLE, inspect.table_names(cursor)):
            columns = {column.name: tuple(column)[1:] for column in inspect.get_table_description(cursor, table)}
            constraints = inspect.get_constraints(cursor, table).values()
            described[table] = columns, sorted(repr(sorted(constraint.items())) for constraint in constraints)
    return described


@pytest.fixture
def by_models() -> dict[str, object]:
    """The structure of the tests' database."""
    return structure(connections["default"])


def test_the_migrations_make_the_tables_of_the_models(
    by_models: dict[str, object], empty_database: BaseDatabaseWrapper
) -> None:
    """Every table has the columns with their types, the indexes and the constraints that its model asks for."""
    call_command("migrate", interactive=False, verbosity=0)

    by_migrations = structure(empty_database)
    assert by_migrations.keys() == by_models.keys()
    assert len(by_migrations) > 30
    for table, described in by_migrations.items():
        assert described == by_models[table], table


def load(database: BaseDatabaseWrapper, version: str) -> None:
    """Fill the empty database with the dump of that version."""
    dump = gzip.decompress((OLD_DATABASES / f"{version}.{database.vendor}.sql.gz").read_bytes()).decode()
    database.ensure_connection()
    if database.vendor == "sqlite":
        with database.constraint_checks_disabled():  # its tables are not in the order of their references
            database.connection.executescript(dump)
    else:
        execute(database, dump)
        database.close()  # the dump empties the search path of its session


def rows(database: BaseDatabaseWrapper) -> dict[str, list[dict[str, object]]]:
    """Return the rows of each of PushHub's tables."""
    found = {}
    with database.cursor() as cursor:
        for table in filter(OWN_TABLE, database.introspection.table_names(cursor)):
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")
            names = [column[0] for column in cursor.description]
            found[table] = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return found


@pytest.fixture
def old_rows(empty_database: BaseDatabaseWrapper) -> dict[str, list[dict[str, object]]]:
    """Make the empty database one of 85cde97, and return its rows."""
    load(empty_database, "85cde97")
    return rows(empty_database)


def test_a_database_of_85cde97_is_brought_up_to_date_with_all_its_rows(
    by_models: dict[str, object],
    empty_database: BaseDatabaseWrapper,
    old_rows: dict[str, list[dict[str, object]]],
) -> None:
    """Its tables are not made anew, and come to equal those of a new database."""
    assert sum(map(len, old_rows.values())) > 40
    call_command("migrate", interactive=False, verbosity=0)

    now = rows(empty_database)
    for table, before in old_rows.items():
        assert len(now[table]) == len(before), table
        for old, new in zip(before, now[table], strict=True):
            assert old.items() <= new.items(), table
    assert structure(empty_database) == by_models


def test_a_database_from_before_85cde97_is_refused_by_name(
    empty_database: BaseDatabaseWrapper, old_rows: dict[str, list[dict[str, object]]], tmp_path: Path
) -> None:
    """The steps up to 85cde97 are gone, so that version has to migrate it first. Nothing is changed."""
    execute(
        empty_database, "DELETE FROM django_migrations WHERE app = 'deliveries' AND name = '0022_part_fingerprints'"
    )
    with pytest.raises(SystemCheckError, match="lacks the migration deliveries.0022_part_fingerprints"):
        call_command("migrate", interactive=False, verbosity=0, skip_checks=False)
    with pytest.raises(CommandError, match="lacks the migration deliveries.0022_part_fingerprints"):
        call_command("backup", str(tmp_path / "backup"))
    assert rows(empty_database) == old_rows


def test_a_database_of_85cde97_is_backed_up_before_it_is_migrated(
    empty_database: BaseDatabaseWrapper, old_rows: dict[str, list[dict[str, object]]], redis_url: str, tmp_path: Path
) -> None:
    """Restored and migrated, the backup has the rows that the database gets by its own migration."""
    file = tmp_path / "backup"
    call_command("backup", str(file))
    assert rows(empty_database) == old_rows
    with pytest.raises(CommandError, match="lacks migrations"):
        call_command("move", to=f"sqlite:///{tmp_path}/moved")
    with other_database(tmp_path, name="restored"):
        call_command("restore", str(file))
        of_backup = contents()
    call_command("migrate", interactive=False, verbosity=0)
    assert of_backup == contents()
