"""`manage.py role_revoke RESOURCE ROLE MEMBER`: remove a member from a policy, as the operator."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from pushhub.common.errors import PushHubError
from subscriptions.iam.grants import revoke_role
from subscriptions.iam.tree import get_resource


class Command(BaseCommand):
    """Removes a member from a role."""

    help = "Remove a member from a role on a resource such as projects/shop or projects/shop/topics/orders."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("resource")
        parser.add_argument("role", help="roles/pubsub.publisher, or the full name of a custom role")
        parser.add_argument("member", help="user:ada@example.com, serviceAccount:..., group:..., domain:...")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            revoke_role(get_resource(options["resource"]), role=options["role"], member=options["member"])
        except PushHubError as error:
            raise CommandError(error.message) from error
