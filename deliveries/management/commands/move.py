"""`pushhub move --to postgres://...`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections

from deliveries.backup.restoring import finish_restore, require_unused, restore_backup
from deliveries.backup.saving import find_migrations, require_database, save_backup
from deliveries.backup.tables import columns_of, content_of, models_in_order
from pushhub.common.commands import OperatorCommand
from pushhub.common.databases import database_config, is_half_restored
from pushhub.common.datafolder import data_folder

TARGET = "target"


class Command(OperatorCommand):
    """Moves everything to another database."""

    help = (
        "Copy every row to another, empty database, for example from SQLite to PostgreSQL, and compare both. Stop "
        "PushHub first: what is published meanwhile would stay behind. Then start it with the new PUSHHUB_DATABASE_URL."
        " After an interruption, run it again: it goes on."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--to",
            required=True,
            metavar="URL",
            help="postgres://user@host:5432/name or sqlite:////path; PGPASSWORD or ~/.pgpass may have the password",
        )
        parser.add_argument(
            "--through",
            type=Path,
            default=Path(settings.DATA_DIR) / "move.backup",
            metavar="FILE",
            help="the backup on the way (default: %(default)s); it is deleted in the end",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        require_database(DEFAULT_DB_ALIAS)
        _, stored = find_migrations(DEFAULT_DB_ALIAS)
        if stored is not apps:
            raise CommandError("The database lacks migrations. Run `pushhub migrate` first.")
        with data_folder(settings.DATA_DIR, is_closed=False):
            self._move(**options)

    def _move(self, **options: Any) -> None:
        through: Path = options["through"]
        connections.settings[TARGET] = connections.configure_settings(
            {"default": {}, TARGET: database_config(options["to"])}
        )[TARGET]
        goes_on = is_half_restored(connections[TARGET])
        if not goes_on:
            require_unused(TARGET)
        if not (goes_on and through.exists()):
            save_backup(through, say=lambda _: None)
        restore_backup(through, say=self.stderr.write, using=TARGET)
        changed = [
            model._meta.db_table
            for model in models_in_order(apps)
            if len({content_of(model, columns_of(model), using=alias) for alias in ("default", TARGET)}) > 1
        ]
        if changed:
            raise CommandError(
                f"While they were moved, other processes changed {', '.join(changed)}. Stop PushHub and move again, "
                "into an empty database."
            )
        finish_restore(TARGET)
        through.unlink()
        self.stdout.write("moved. Start PushHub with the new PUSHHUB_DATABASE_URL.")
