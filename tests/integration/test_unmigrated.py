"""Commands on a database without tables say in one line what to do."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import ProgrammingError
from psycopg.errors import UndefinedTable

from pushhub.cli import execute_django
from pushhub.common.databases import database_line
from tests.databases import other_database

pytestmark = pytest.mark.django_db(transaction=True)

REMEDY = ": `migrate` makes what this version needs"


@pytest.fixture(autouse=True)
def unmigrated(tmp_path: Path) -> Iterator[None]:
    terminate = signal.getsignal(signal.SIGTERM)
    with other_database(tmp_path, name="unmigrated"):
        yield
    signal.signal(signal.SIGTERM, terminate)


def test_a_command_of_pushhub_names_migrate() -> None:
    with pytest.raises(CommandError, match="deliveries_archiveowner.*" + REMEDY):
        call_command("pipeline", "archive", "verify")


def test_a_command_of_django_names_migrate() -> None:
    with pytest.raises(SystemExit, match="the database cannot be used: .*auth_user.*" + REMEDY):
        execute_django(["pushhub", "createsuperuser", "--noinput", "--username", "a", "--email", "a@example.com"])


def test_a_postgresql_of_another_language_names_migrate_too() -> None:
    error = ProgrammingError('Relation "auth_user" existiert nicht')
    error.__cause__ = UndefinedTable()
    assert database_line(error).endswith(REMEDY)
