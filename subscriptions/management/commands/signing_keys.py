"""`manage.py signing_keys list|rotate|replace|reencrypt`: the keys that sign push tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from pushhub.common.commands import OperatorCommand
from subscriptions.identity import rotation
from subscriptions.models.iam import SigningKey


class Command(OperatorCommand):
    help = "The keys that sign push tokens. Private halves are never shown."

    def add_arguments(self, parser: CommandParser) -> None:
        actions: dict[str, tuple[Callable[[], None], str]] = {
            "list": (self.list, "show the keys: id, what it does now, since when it signs"),
            "rotate": (self.rotate, "make the next key, which verifiers hear of before it signs"),
            "replace": (self.replace, "after a private key was disclosed: sign with a new key, distrust the old ones"),
            "reencrypt": (self.reencrypt, "encrypt with PUSHHUB_KEY_ENCRYPTION_KEY what the previous one encrypted"),
        }
        commands = parser.add_subparsers(required=True, metavar="list | rotate | replace | reencrypt")
        for name, (action, help_text) in actions.items():
            commands.add_parser(name, help=help_text).set_defaults(action=action)

    def handle(self, *args: Any, **options: Any) -> None:
        options["action"]()

    def list(self) -> None:
        for row in SigningKey.objects.all():
            self.stdout.write(f"{row.kid}\t{rotation.key_state(row)}\t{row.signs_from:%F %T}")

    def rotate(self) -> None:
        row = rotation.rotate_key()
        self.stdout.write(f"{row.kid} signs from {row.signs_from:%F %T} UTC")

    def replace(self) -> None:
        row = rotation.replace_keys()
        self.stdout.write(f"{row.kid} signs from now on. Restart the push workers: they have tokens of the old keys.")

    def reencrypt(self) -> None:
        self.stdout.write(f"re-encrypted keys: {rotation.reencrypt_keys()}")
