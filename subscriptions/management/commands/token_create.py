"""`manage.py token_create --member user:ada@example.com --lifetime 12h`: a bearer token, printed once."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.identity import access_tokens

UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def lifetime(text: str) -> timedelta:
    """Parse `90s`, `30m`, `12h` or `7d`."""
    match = re.fullmatch(r"([0-9]{1,9})([smhd])", text, re.ASCII)
    if match is None:
        raise ArgumentTypeError(f"{text!r}: give a number and one of s, m, h, d: 90s, 30m, 12h, 7d")
    return timedelta(**{UNITS[match[2]]: int(match[1])})


class Command(OperatorCommand):
    help = "Create an access token for a user or a service account and print it. PushHub can't show it a second time."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--member", required=True, help="user:ada@example.com or serviceAccount:EMAIL")
        parser.add_argument("--lifetime", type=lifetime, default=access_tokens.LIFETIME, help="90s, 30m, 12h, 7d")

    def handle(self, *args: Any, **options: Any) -> None:
        issued = access_tokens.create_access_token(member=options["member"], lifetime=options["lifetime"])
        self.stdout.write(issued.token)
        row = issued.row
        self.stderr.write(f"token {row.pk} of {row.member}, valid until {row.expires_at:%F %T} UTC")
