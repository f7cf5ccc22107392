"""Migrations make the tables of the models, and carry data over.

All other tests run on tables that Django makes from the models, which takes an eighth of the time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone

pytestmark = pytest.mark.django_db(transaction=True)

Migrate = Callable[[str], Any]
#: The ids of some of Django's own tables are wider by the migrations than by the models.
OWN_TABLE = re.compile("(deliveries|subscriptions)_").match


@pytest.fixture
def empty_database(settings: Any, tmp_path: Path) -> Iterator[BaseDatabaseWrapper]:
    """Another database, without tables, in place of the tests' one."""
    tests_own = connections["default"]
    other = tests_own.copy()
    if other.vendor == "sqlite":
        other.settings_dict["NAME"] = str(tmp_path / "migrated.sqlite3")
    else:
        other.settings_dict["NAME"] += "_migrated"
        execute(tests_own, f"CREATE DATABASE {other.settings_dict['NAME']}")
    settings.MIGRATION_MODULES = {}
    connections["default"] = other
    try:
        yield other
    finally:
        other.close()
        connections["default"] = tests_own
        if other.vendor != "sqlite":
            execute(tests_own, f"DROP DATABASE {other.settings_dict['NAME']}")


@pytest.fixture
def migrate(empty_database: BaseDatabaseWrapper) -> Iterator[Migrate]:
    """Return a function that migrates the tables of `deliveries` and returns the models of that migration.

    All migrations have been applied before, and are again afterwards.
    """

    def to(name: str) -> Any:
        executor = MigrationExecutor(empty_database)
        return executor.migrate([("deliveries", name)]).apps

    call_command("migrate", interactive=False, verbosity=0)
    graph = MigrationExecutor(empty_database).loader.graph
    [latest] = [name for app, name in graph.leaf_nodes() if app == "deliveries"]
    yield to
    to(latest)


def execute(database: BaseDatabaseWrapper, statement: str) -> None:
    with database.cursor() as cursor:
        cursor.execute(statement)


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


def test_jobs_from_before_parts_existed_continue_where_they_were(migrate: Migrate) -> None:
    """Otherwise a replay that is resumed after the upgrade would publish messages a second time under its id."""
    jobs = migrate("0006_publish_jobs").get_model("deliveries", "PublishJob").objects
    spec = {"topic": "projects/shop/topics/orders", "subscription": "projects/shop/subscriptions/push"}
    jobs.create(job_id="replay", kind="replay", spec=spec, position=7, published=3, rejected=0)
    jobs.create(
        job_id="ingest", kind="ingest", spec={}, position=9, published=5, rejected=4, finished_at=timezone.now()
    )
    apps = migrate("0009_publish_parts_alone")
    parts = apps.get_model("deliveries", "PublishPart").objects
    columns = ("number", "position", "until", "published", "rejected", "finished")
    assert parts.filter(job__job_id="replay").values_list(*columns).get() == (0, 7, 2**63 - 1, 3, 0, False)
    assert parts.filter(job__job_id="ingest").values_list(*columns).get() == (0, 9, None, 5, 4, True)
    replay = apps.get_model("deliveries", "PublishJob").objects.get(job_id="replay")
    assert (replay.parts, replay.spec["topic"], replay.spec["subscription"]) == (1, "", spec["subscription"])
