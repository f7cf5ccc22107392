"""Writes a backup: a ZIP file with a file of lines for each table, and a manifest."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import orjson
from django.apps import apps
from django.apps.registry import Apps
from django.conf import settings
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor

from deliveries.backup.tables import columns_of, content_of, last_id, models_in_order
from pushhub.common.databases import FINISH_RESTORE, HALF_RESTORED, is_half_restored, refusal_line
from pushhub.common.errors import FailedPrecondition
from pushhub.common.stores import lock_file, open_private, replacing

FORMAT = 1
MANIFEST = "manifest.json"
#: Says what is being done.
Say = Callable[[str], None]


def save_backup(path: Path, *, say: Say, using: str = "default") -> None:
    """Write all rows, as they are at one moment, while PushHub runs. Only the owner may read the file: it has secrets.

    The tables may be those of an older version: a backup comes before `migrate`. Raises FailedPrecondition where the
    database or its tables are missing, and OSError.
    """
    require_database(using)
    migrations, stored = find_migrations(using)
    tables = []
    with (
        _snapshot(using),
        _replacing(path) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for model in models_in_order(stored):
            name, columns = model._meta.db_table, columns_of(model)
            with archive.open(f"{name}.jsonl", "w", force_zip64=True) as member:
                content = content_of(model, columns, using=using, write=member.write)
            if content.rows:
                say(f"{name}: {content.rows:,} rows")
            ids = {"last_id": last_id(model, using=using)}
            tables.append({"table": name, "columns": columns, "rows": content.rows, **ids})
        manifest = {"format": FORMAT, "version": settings.VERSION, "migrations": migrations, "tables": tables}
        archive.writestr(MANIFEST, orjson.dumps(manifest, option=orjson.OPT_INDENT_2))


def find_migrations(using: str) -> tuple[list[tuple[str, str]], Apps]:
    """Return the last migration of each app that the database has, and the models of these tables."""
    executor = MigrationExecutor(connections[using])
    graph, applied = executor.loader.graph, executor.loader.applied_migrations
    if not executor.migration_plan(graph.leaf_nodes()):
        return graph.leaf_nodes(), apps
    if refusal := refusal_line(using):
        raise FailedPrecondition(refusal)
    migrations = list(dict(sorted(node for node in applied if node in graph.nodes)).items())
    if not migrations:
        raise FailedPrecondition("The database has no tables. Run `pushhub migrate` first.")
    return migrations, executor.loader.project_state(migrations).apps


def require_database(using: str) -> None:
    """Raise FailedPrecondition for a half-restored database, and where there is no file of SQLite.

    A connection would create an empty one.
    """
    config = connections[using].settings_dict
    if connections[using].vendor == "sqlite" and not Path(config["NAME"]).exists():
        raise FailedPrecondition(
            f"There is no database at {config['NAME']}: PUSHHUB_DATA or PUSHHUB_DATABASE_URL names it."
        )
    if is_half_restored(connections[using]):
        raise FailedPrecondition(f"{HALF_RESTORED} {FINISH_RESTORE}")


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file for its owner alone, which takes the place of `path` once it is whole.

    What a killed run has left is replaced; raises FailedPrecondition if another run writes to the same place. A file or
    a link that somebody else puts there meanwhile is not written to.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    unfinished = path.with_name(f"{path.name}.unfinished")
    with suppress(OSError), open(unfinished, "rb", opener=_open_at_once) as left:
        _lock(left, unfinished)
    unfinished.unlink(missing_ok=True)
    with open(unfinished, "x+b", opener=open_private) as file:
        _lock(file, unfinished)
        with replacing(path, file):
            yield file


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, but none by a link, and don't wait for the writer of a named pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock a file. Raises FailedPrecondition if another process has locked it, or has just replaced it."""
    if not lock_file(file) or not os.path.samestat(os.fstat(file.fileno()), path.lstat()):
        raise FailedPrecondition(f"Another backup is being written to {path}.")


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
