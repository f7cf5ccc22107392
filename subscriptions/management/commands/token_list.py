"""`manage.py token_list`: the access tokens that are valid now, without their text."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.identity import access_tokens


class Command(OperatorCommand):
    help = "List the access tokens that are valid now: id, expiry, member."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--member", default="", help="only the tokens of user:ada@example.com")

    def handle(self, *args: Any, **options: Any) -> None:
        for row in access_tokens.list_access_tokens(member=options["member"]):
            self.stdout.write(f"{row.pk}\t{row.expires_at:%F %T}\t{row.member}")
