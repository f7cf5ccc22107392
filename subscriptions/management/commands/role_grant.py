"""`manage.py role_grant RESOURCE ROLE MEMBER`: add a member to a policy, as the operator."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.iam.grants import grant_role
from subscriptions.iam.tree import get_resource


class Command(OperatorCommand):
    help = "Bind a member to a role on a resource such as projects/shop or projects/shop/topics/orders."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("resource")
        parser.add_argument("role", help="roles/pubsub.publisher, or the full name of a custom role")
        parser.add_argument("member", help="user:ada@example.com, serviceAccount:..., group:..., domain:...")

    def handle(self, *args: Any, **options: Any) -> None:
        grant_role(get_resource(options["resource"]), role=options["role"], member=options["member"])
