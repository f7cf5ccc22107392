"""`manage.py project_create ID`: where projects don't come into being by themselves."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pushhub.errors import PushHubError
from subscriptions.services import project_create


class Command(BaseCommand):
    """Makes a project."""

    help = "Make a project, and print its number and service agent."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project_id")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            project = project_create(project_id=options["project_id"])
        except PushHubError as error:
            raise CommandError(error.message) from error
        self.stdout.write(f"{project.project_id} {project.number} {project.service_agent}")
