"""`manage.py role_revoke RESOURCE ROLE MEMBER`: remove a member from a policy, as the operator."""

from __future__ import annotations

from typing import Any

from subscriptions.iam.grants import revoke_role
from subscriptions.iam.tree import get_resource
from subscriptions.management.commands import role_grant


class Command(role_grant.Command):
    help = "Remove a member from a role on a resource such as projects/shop or projects/shop/topics/orders."

    def handle(self, *args: Any, **options: Any) -> None:
        revoke_role(get_resource(options["resource"]), role=options["role"], member=options["member"])
