"""What the commands of an operator share: an error of a service is one line, not a traceback."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from pushhub.common.errors import PushHubError


class OperatorCommand(BaseCommand):
    """A command whose `handle` calls services."""

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except PushHubError as error:
            raise CommandError(error.message) from error
