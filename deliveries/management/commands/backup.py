"""`pushhub backup FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from deliveries.backup.saving import save_backup
from pushhub.common.commands import OperatorCommand
from pushhub.common.replica import export


class Command(OperatorCommand):
    """Writes a backup."""

    help = (
        "Write every row of the database to one file, as of one moment, while PushHub runs. The file has secrets: who "
        "has it and PUSHHUB_SECRET_KEY can sign tokens. The archive and the journal are folders of their own: copy them"
        " afterwards."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="where to write; an old one is replaced once the new one is whole")

    def handle(self, *args: Any, **options: Any) -> None:
        export(lambda alias: save_backup(options["file"], say=self.stderr.write, using=alias))
        self.stdout.write(f"{options['file']}: {options['file'].stat().st_size:,} bytes")
