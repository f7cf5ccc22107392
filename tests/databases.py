"""Databases besides the tests' own one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


@contextmanager
def other_database(folder: Path, *, name: str, template: str = "") -> Iterator[BaseDatabaseWrapper]:
    """Put a database without tables, or a copy of the database `template`, in place of the current one, for the block.

    Nobody may be connected to the template.
    """
    current = connections["default"]
    other = current.copy()
    if other.vendor == "sqlite":
        other.settings_dict["NAME"] = str(folder / f"{name}.sqlite3")
        if template:
            shutil.copyfile(template, other.settings_dict["NAME"])
    else:
        other.settings_dict["NAME"] += f"_{name}"
        execute(current, f"CREATE DATABASE {other.settings_dict['NAME']} TEMPLATE {template or 'template1'}")
    connections["default"] = other
    try:
        yield other
    finally:
        other.close()
        connections["default"] = current
        if other.vendor != "sqlite":
            execute(current, f"DROP DATABASE {other.settings_dict['NAME']}")


def execute(database: BaseDatabaseWrapper, statement: str) -> None:
    with database.cursor() as cursor:
        cursor.execute(statement)
