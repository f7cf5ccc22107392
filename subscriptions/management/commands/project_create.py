"""`manage.py project_create ID`: for deployments in which the first use of a project doesn't create it."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.services.hierarchy import get_parent
from subscriptions.services.projects import create_project


class Command(OperatorCommand):
    help = "Create a project and print its number and service agent."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("project_id")
        parser.add_argument("--parent", default="", help="organizations/NUMBER or folders/NUMBER")
        parser.add_argument(
            "--created",
            type=date.fromisoformat,
            help="the creation date of the project; up to 2021-04-08, its service agent needs a grant",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = create_project(
            project_id=options["project_id"],
            parent=get_parent(options["parent"]),
            created_at=_start(options["created"]),
        )
        self.stdout.write(f"{project.project_id} {project.number} {project.service_agent}")


def _start(day: date | None) -> datetime | None:
    return None if day is None else datetime.combine(day, time(), UTC)
