"""`pushhub restore FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from django.conf import settings
from django.core.management.base import CommandParser
from django.db import DEFAULT_DB_ALIAS

from deliveries.backlog.connection import redis_client
from deliveries.backlog.default import default_backlog
from deliveries.backup.restoring import finish_restore, restore_backup
from pushhub.common.commands import OperatorCommand
from pushhub.common.datafolder import data_folder
from pushhub.common.redisclient import empty_redis


class Command(OperatorCommand):
    """Restores a backup."""

    help = (
        "Insert the rows of a backup into an empty database, SQLite or PostgreSQL, and compare them with the backup. "
        "Stop PushHub first. Use the PUSHHUB_SECRET_KEY of the backup's PushHub. Messages that were acknowledged after "
        "the backup are delivered again. After an interruption, run it again with the same file: it goes on."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", type=Path, help="what `pushhub backup` wrote")

    def handle(self, *args: Any, **options: Any) -> None:
        with data_folder(settings.DATA_DIR, is_closed=False):
            restore_backup(options["file"], say=self.stderr.write)
            for save in settings.REDIS_FOLDER.glob(settings.REDIS_SAVES):
                save.unlink()
            try:
                empty_redis(redis_client())
                default_backlog().disown_cells()
            except redis.RedisError:
                self.stderr.write("Redis is away. Unless it is the embedded one, empty it before PushHub starts.")
            finish_restore(DEFAULT_DB_ALIAS)
        self.stdout.write("restored. If there is an archive, run `pushhub pipeline archive adopt`.")
