"""Restores a backup into an empty database of either kind."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model

from deliveries.backup.saving import FORMAT, MANIFEST, Say
from deliveries.backup.tables import (
    begin_ids_after,
    columns_of,
    content_of,
    content_of_lines,
    insert_lines,
    last_id,
    lines_together,
    models_in_order,
    refers_to_itself,
)
from pushhub.common.databases import UNFINISHED_RESTORE, is_half_restored
from pushhub.common.errors import FailedPrecondition, InvalidArgument

#: What zipfile and the manifest of a damaged file raise.
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, OSError, LookupError, TypeError, ValueError, RuntimeError)
#: A database with rows in one of these has been used.
USED = ("subscriptions_project", "auth_user", "deliveries_message")


def restore_backup(path: Path, *, say: Say, using: str = "default") -> None:
    """Insert the rows of a backup, and compare them with it.

    The tables are made as they were in the version that wrote the backup, and are brought up to date in the end. After
    an interruption, another call with the same file goes on. Until `finish_restore`, PushHub refuses the database.
    Raises InvalidArgument for a file that is no whole backup, and FailedPrecondition for a database that is in use, or
    a backup of a newer version.
    """
    with _opened(path) as (archive, manifest):
        models = _prepare(manifest, using=using)
        for table, model in models:
            _fill(model, table, archive, using=using)
            if table["rows"]:
                say(f"{table['table']}: {table['rows']:,} rows")
        _give_no_id_twice(manifest["tables"], [model for _, model in models], using=using)
        wrong = [table["table"] for table, model in models if not _is_filled(model, table, archive, using=using)]
    if wrong:
        raise FailedPrecondition(
            f"The database has other rows than the backup in {', '.join(wrong)}. Stop PushHub, and restore into an "
            "empty database."
        )
    say("every table has the backup's rows and checksum")
    call_command("migrate", database=using, interactive=False, verbosity=0)
    # SQLite forgets the last id of a table that a migration makes anew.
    _give_no_id_twice(manifest["tables"], models_in_order(apps), using=using)


def finish_restore(using: str) -> None:
    """Let PushHub start on the database."""
    MigrationRecorder(connections[using]).record_unapplied(*UNFINISHED_RESTORE)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[zipfile.ZipFile, dict[str, Any]]]:
    with path.open("rb") as file:
        # Whatever is damaged is found now, so that no part of it is in the database.
        try:
            archive = zipfile.ZipFile(file)
            if damaged := archive.testzip():
                raise zipfile.BadZipFile(f"{damaged} is damaged")
            manifest = orjson.loads(archive.read(MANIFEST))
            is_newer = manifest["format"] > FORMAT
        except DAMAGED as error:
            raise InvalidArgument(f"{path} is no whole backup: {error}", field="file") from error
        if is_newer:
            raise FailedPrecondition(f"{path} was written by a newer version of PushHub, {manifest['version']}.")
        try:
            yield archive, manifest
        except KeyError as error:
            raise InvalidArgument(f"{path} is no whole backup: it lacks {error}", field="file") from error


def _prepare(manifest: dict[str, Any], *, using: str) -> list[tuple[dict[str, Any], type[Model]]]:
    """Make the tables of the backup's version, without rows. Return each with its model, in the order of filling."""
    connection = connections[using]
    executor = MigrationExecutor(connection)
    leaves = [(app, name) for app, name in manifest["migrations"]]
    unknown = [f"{app}.{name}" for app, name in leaves if (app, name) not in executor.loader.graph.nodes]
    if unknown:
        raise FailedPrecondition(
            f"The backup is of PushHub {manifest['version']}, which is newer than this one (unknown: {unknown[0]})."
        )
    goes_on = is_half_restored(connection)
    if not goes_on:
        require_unused(using)
    if any(backwards for _, backwards in executor.migration_plan(leaves)):
        raise FailedPrecondition(
            f"The backup is of an older version, {manifest['version']}, and the database has newer tables. Restore "
            "into a database without tables."
        )
    executor.migrate(leaves)
    ordered = models_in_order(executor.loader.project_state(leaves).apps)
    by_table = {model._meta.db_table: model for model in ordered}
    if not goes_on:
        # Migrations make a few rows.
        with transaction.atomic(using):
            for model in reversed(ordered):
                model._base_manager.using(using).all().delete()
            executor.recorder.record_applied(*UNFINISHED_RESTORE)
    models = []
    for table in manifest["tables"]:
        model = by_table[table["table"]]
        if set(columns_of(model)) != set(table["columns"]):
            raise InvalidArgument(f"{table['table']} has other columns in the backup than in its version", field="file")
        models.append((table, model))
    return models


def require_unused(using: str) -> None:
    """Raise FailedPrecondition for a database in which there are rows already."""
    existing = set(connections[using].introspection.table_names())
    for model in models_in_order(apps):
        if model._meta.db_table in existing.intersection(USED) and model._base_manager.using(using).exists():
            raise FailedPrecondition(f"The database is in use: {model._meta.db_table} has rows. Name an empty one.")


def _fill(model: type[Model], table: dict[str, Any], archive: zipfile.ZipFile, *, using: str) -> None:
    """Insert the rows that the table lacks: it has the first ones, if an earlier call was interrupted."""
    with archive.open(f"{table['table']}.jsonl") as member:
        lines = islice(member, model._base_manager.using(using).count(), None)
        for chunk in [list(lines)] if refers_to_itself(model) else lines_together(lines):
            with transaction.atomic(using):
                insert_lines(model, table["columns"], chunk, using=using)


def _is_filled(model: type[Model], table: dict[str, Any], archive: zipfile.ZipFile, *, using: str) -> bool:
    """Return whether the table has the rows of the backup and no others."""
    with archive.open(f"{table['table']}.jsonl") as member:
        return content_of(model, table["columns"], using=using) == content_of_lines(member)


def _give_no_id_twice(tables: list[dict[str, Any]], models: list[type[Model]], *, using: str) -> None:
    """Let no new row have the id of a restored one, or of one that was deleted before the backup.

    Messages of a deleted topic may still wait, and would be those of the topic that got its id.
    """
    given = {table["table"]: table["last_id"] or 0 for table in tables}
    for model in models:
        last = given.get(model._meta.db_table, 0)
        if last > (last_id(model, using=using) or 0):
            begin_ids_after(model, last, using=using)
