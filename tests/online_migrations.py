"""Refuses migrations that the processes of the previous release would not survive: python -m tests.online_migrations.

docs/upgrading.md says how a column or a table goes: a release stops using it, and a later one drops it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from django.db.migrations import Migration, operations
from django.db.models import NOT_PROVIDED, Field

from pushhub.common.migrations import AddColumn, AddIndexOnline

APPS = ("deliveries", "subscriptions")
#: A migration with this attribute, a sentence, has steps of which only its author can say that they are harmless.
REASON = "harmless_because"
#: What no older process notices. Changes of options, such as names for people, don't reach the database.
HARMLESS = (operations.CreateModel, operations.AlterModelOptions, operations.AlterModelManagers, AddIndexOnline)


def find_faults(migration: Migration) -> Iterator[str]:
    """Yield a sentence about each operation that may break or block the previous release."""
    if getattr(migration, REASON, ""):
        return
    columns = 0
    for operation in migration.operations:
        if isinstance(operation, AddColumn):
            columns += 1
            yield from _column_faults(operation.field, f"{operation.model_name}.{operation.name}")
        elif isinstance(operation, operations.AddField):
            yield f"{operation.describe()}: use AddColumn, which neither copies the table nor waits long for its lock"
        elif isinstance(operation, operations.AddIndex) and not isinstance(operation, AddIndexOnline):
            yield f"{operation.describe()}: use AddIndexOnline, beside which others can write"
        elif isinstance(operation, operations.SeparateDatabaseAndState):
            if operation.database_operations:
                yield f"{operation.describe()}: it has operations on the database; name them in the migration itself"
        elif not isinstance(operation, HARMLESS):
            yield f"{operation.describe()}: the previous release may need what it changes, or wait for it"
    if columns > 1 and migration.atomic:
        yield "it adds several columns in one transaction, which keeps the first lock while it waits for the next"
    if migration.atomic and any(isinstance(operation, AddIndexOnline) for operation in migration.operations):
        yield "AddIndexOnline needs `atomic = False`"


def _column_faults(field: Field[object, object], name: str) -> Iterator[str]:
    if not field.null and field.db_default is NOT_PROVIDED:
        yield f"{name} needs a db_default or null=True: the previous release inserts rows without it"
    if field.unique or field.db_index or (field.remote_field is not None and field.db_constraint):
        yield f"{name} may have no constraint or index of its own: making one would keep the table locked"


def faults() -> Iterator[str]:
    """Yield the faults of all migrations but the first of each app, which makes the tables."""
    from django.db.migrations.loader import MigrationLoader

    for (app, name), migration in sorted(MigrationLoader(None).disk_migrations.items()):
        if app in APPS and not migration.initial:
            for fault in find_faults(migration):
                yield f"{app}.{name}: {fault}"


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "pushhub.settings")
    import django

    django.setup()
    sentences = list(faults())
    for sentence in sentences:
        print(sentence)
    if sentences:
        print(f"The previous release has to go on meanwhile: docs/upgrading.md. Or say in `{REASON}` why it does.")
    return bool(sentences)


if __name__ == "__main__":
    sys.exit(main())
