"""`manage.py perimeter create|delete|list`: which projects VPC Service Controls protect."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from pushhub.common import names
from pushhub.common.commands import OperatorCommand
from subscriptions import selectors
from subscriptions.models.iam import Perimeter


class Command(OperatorCommand):
    help = (
        "Service perimeters. Projects inside one get new push subscriptions for default run.app URLs only, and "
        "existing push subscriptions there cannot be updated."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="create|delete|list")
        create = verbs.add_parser("create", help="protect projects")
        create.add_argument("title")
        create.add_argument("projects", nargs="+", metavar="PROJECT")
        verbs.add_parser("delete", help="end the protection").add_argument("title")
        verbs.add_parser("list", help="per line: title, on or off, projects")

    def handle(self, *args: Any, **options: Any) -> None:
        {"create": self._create, "delete": self._delete, "list": self._list}[options["verb"]](options)

    def _create(self, options: dict[str, Any]) -> None:
        with transaction.atomic():
            perimeter, is_new = Perimeter.objects.get_or_create(title=options["title"])
            if not is_new:
                raise CommandError(f"A perimeter named {perimeter.title} exists already.")
            projects = [names.parse_project(f"projects/{project}", field="project") for project in options["projects"]]
            perimeter.projects.set([selectors.get_project(project=project) for project in projects])

    def _delete(self, options: dict[str, Any]) -> None:
        for perimeter in Perimeter.objects.filter(title=options["title"]):
            perimeter.delete()
            return
        raise CommandError(f"There is no perimeter {options['title']}.")

    def _list(self, options: dict[str, Any]) -> None:
        for perimeter in Perimeter.objects.prefetch_related("projects"):
            projects = " ".join(project.project_id for project in perimeter.projects.all())
            self.stdout.write(f"{perimeter.title}  {'on' if perimeter.enabled else 'off'}  {projects}")
