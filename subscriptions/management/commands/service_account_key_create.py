"""`manage.py service_account_key_create EMAIL --out key.json`: a key file for Google's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from pushhub.common import names
from pushhub.common.commands import OperatorCommand
from pushhub.common.stores import created_file
from subscriptions.identity import account_keys


class Command(OperatorCommand):
    help = "Create a key of a service account and write its key file, which only its owner may read."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("email")
        parser.add_argument("--out", type=Path, required=True, help="the file to write; it must not exist")

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["out"]
        issued = None
        try:
            with created_file(path) as file:
                name = names.service_account_name("-", options["email"])
                issued = account_keys.create_service_account_key(name=name, request={})
                file.write(issued.key_file)
        except OSError as error:
            if issued is not None:
                issued.row.delete()
            raise CommandError(f"{path}: {error.strerror}") from None
        self.stdout.write(f"{path}: key {issued.row.key_id} of {issued.row.account.email}")
