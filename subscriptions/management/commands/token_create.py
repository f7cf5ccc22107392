"""`manage.py token_create --member user:ada@example.com --lifetime 12h`: a bearer token, printed once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.identity import access_tokens
from subscriptions.management.arguments import lifetime


class Command(OperatorCommand):
    """Creates an access token."""

    help = "Create an access token for a user or a service account and print it. PushHub can't show it a second time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--member", required=True, help="user:ada@example.com or serviceAccount:EMAIL")
        parser.add_argument("--lifetime", type=lifetime, default=access_tokens.LIFETIME, help="90s, 30m, 12h, 7d")

    def handle(self, *args: Any, **options: Any) -> None:
        issued = access_tokens.create_access_token(member=options["member"], lifetime=options["lifetime"])
        self.stdout.write(issued.token)
        row = issued.row
        self.stderr.write(f"token {row.pk} of {row.member}, valid until {row.expires_at:%F %T} UTC")
