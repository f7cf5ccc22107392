"""What the commands of an operator share: an error that the operator can mend is one line, not a traceback."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from pushhub.common.databases import database_line
from pushhub.common.errors import PushHubError


class OperatorCommand(BaseCommand):
    """A command whose `handle` calls services."""

    #: Django's options, which work, but of which `--help` would have more lines than of the command's own.
    suppressed_base_arguments = {
        *("--version", "--verbosity", "--settings", "--pythonpath", "--traceback", "--no-color", "--force-color"),
        "--skip-checks",
    }
    #: The checks load every page of the console and of the API, which takes a second and 50 MB.
    requires_system_checks: list[str] = []

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except PushHubError as error:
            raise CommandError(error.message) from error
        except (DatabaseError, OSError) as error:  # also a disk that is full, or an object store that refuses
            raise CommandError(database_line(error)) from error
