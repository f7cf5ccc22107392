"""`manage.py organization_create NAME`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pushhub.common.errors import PushHubError
from subscriptions.services import hierarchy


class Command(BaseCommand):
    """Creates an organization."""

    help = "Create an organization and print its resource name."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("display_name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            organization = hierarchy.create_organization(display_name=options["display_name"])
        except PushHubError as error:
            raise CommandError(error.message) from error
        self.stdout.write(organization.name)
