"""`manage.py folder_create NAME`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.services import hierarchy


class Command(OperatorCommand):
    help = "Create a folder and print its resource name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("display_name")
        parser.add_argument("--parent", required=True, help="organizations/NUMBER or folders/NUMBER")

    def handle(self, *args: Any, **options: Any) -> None:
        parent = hierarchy.get_parent(options["parent"])
        if parent is None:
            raise CommandError("--parent must be organizations/NUMBER or folders/NUMBER")
        folder = hierarchy.create_folder(display_name=options["display_name"], parent=parent)
        self.stdout.write(folder.name)
