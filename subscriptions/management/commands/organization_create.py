"""`manage.py organization_create NAME`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.services import hierarchy


class Command(OperatorCommand):
    help = "Create an organization and print its resource name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("display_name")

    def handle(self, *args: Any, **options: Any) -> None:
        organization = hierarchy.create_organization(display_name=options["display_name"])
        self.stdout.write(organization.name)
