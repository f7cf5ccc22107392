"""`manage.py token_revoke 17 18` or `--member user:ada@example.com`: revoke access tokens."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.identity import access_tokens


class Command(OperatorCommand):
    help = "Revoke access tokens by the ids that token_list shows, or all tokens of a member."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", type=int)
        parser.add_argument("--member", default="", help="all tokens of user:ada@example.com")

    def handle(self, *args: Any, **options: Any) -> None:
        if bool(options["ids"]) == bool(options["member"]):
            raise CommandError("Pass either ids or --member.")
        revoked = access_tokens.revoke_access_tokens(ids=options["ids"], member=options["member"])
        self.stdout.write(f"revoked {revoked}")
        if not revoked:
            raise CommandError("There was no such token.")
