"""Writes a backup: a ZIP file with a file of lines for each table, and a manifest."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from django.apps import apps
from django.conf import settings
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor

from deliveries.backup.tables import columns_of, content_of, last_id, models_in_order
from pushhub.common.errors import FailedPrecondition

FORMAT = 1
MANIFEST = "manifest.json"
#: Says what is being done.
Say = Callable[[str], None]


def save_backup(path: Path, *, say: Say, using: str = "default") -> None:
    """Write all rows, as they are at one moment, while PushHub runs. Only the owner may read the file: it has secrets.

    Raises FailedPrecondition where migrations are missing, and OSError.
    """
    executor = MigrationExecutor(connections[using])
    leaves = executor.loader.graph.leaf_nodes()
    if executor.migration_plan(leaves):
        raise FailedPrecondition("The database lacks migrations. Run `pushhub migrate` first.")
    unfinished = path.with_name(f"{path.name}.unfinished")
    tables = []
    # What a killed run left is replaced. A file or a link that somebody else puts there meanwhile is not written to.
    unfinished.unlink(missing_ok=True)
    try:
        with (
            _snapshot(using),
            open(unfinished, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            for model in models_in_order(apps):
                name, columns = model._meta.db_table, columns_of(model)
                with archive.open(f"{name}.jsonl", "w", force_zip64=True) as member:
                    content = content_of(model, columns, using=using, write=member.write)
                if content.rows:
                    say(f"{name}: {content.rows:,} rows")
                ids = {"last_id": last_id(model, using=using)}
                tables.append({"table": name, "columns": columns, "rows": content.rows, **ids})
            manifest = {"format": FORMAT, "version": settings.VERSION, "migrations": leaves, "tables": tables}
            archive.writestr(MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _snapshot(using: str) -> Iterator[None]:
    """Let all reads of the block see the database as it was at the first of them. Nobody waits for that."""
    connection = connections[using]
    if connection.vendor == "postgresql":
        with transaction.atomic(using), connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield
        return
    with connection.cursor() as cursor:
        # Django's own transactions on SQLite take the write lock.
        cursor.execute("BEGIN DEFERRED")
        try:
            yield
        finally:
            cursor.execute("ROLLBACK")
