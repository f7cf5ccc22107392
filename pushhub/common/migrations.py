"""Operations for migrations that run while the previous release serves: they hold no table for longer than a moment.

`tests/online_migrations.py` refuses Django's own operations where these exist.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from django.db import OperationalError, transaction
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import AddField, AddIndex
from django.db.models import Field

if TYPE_CHECKING:
    from django.db.migrations.state import ProjectState
    from django.db.models import Model

#: How long other statements may have to wait behind one that waits for a lock, and how long it is tried again.
LOCK_SECONDS = 0.5
PATIENCE_SECONDS = 600.0
#: PostgreSQL's code of `lock_not_available`.
LOCK_NOT_AVAILABLE = "55P03"


class AddColumn(AddField):
    """Adds a column that is nullable or has a `db_default`, without rewriting the table.

    On PostgreSQL a transaction that is long, such as that of a backup, would make the change wait for its lock, and all
    other statements behind it: so it gives up soon, and tries again. On SQLite, Django would copy the table.
    """

    def database_forwards(
        self, app_label: str, schema_editor: BaseDatabaseSchemaEditor, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        model: type[Model] = to_state.apps.get_model(app_label, self.model_name)
        alias = schema_editor.connection.alias
        if not self.allow_migrate_model(alias, model):
            return
        column = model._meta.get_field(self.name)
        assert isinstance(column, Field)
        if schema_editor.connection.vendor == "sqlite":
            BaseDatabaseSchemaEditor.add_field(schema_editor, model, column)
            return
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with transaction.atomic(alias):
                    schema_editor.execute(f"SET LOCAL lock_timeout = '{int(LOCK_SECONDS * 1000)}ms'")
                    schema_editor.add_field(model, column)
                    return
            except OperationalError as error:
                is_locked = getattr(error.__cause__, "sqlstate", "") == LOCK_NOT_AVAILABLE
                if not is_locked or time.monotonic() > give_up:
                    raise
            time.sleep(LOCK_SECONDS)


class AddIndexOnline(AddIndex):
    """Adds an index; on PostgreSQL, while others write to the table. Its migration has `atomic = False`."""

    atomic = False

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        if schema_editor.connection.vendor == "sqlite":
            super().database_forwards(app_label, schema_editor, from_state, to_state)
            return
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            # One that an interrupted migration has left is not valid.
            schema_editor.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {schema_editor.quote_name(self.index.name)}")
            schema_editor.add_index(model, self.index, concurrently=True)
