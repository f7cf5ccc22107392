"""A management command made of verbs."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from subscriptions.cli.program import Tree, add_parsers, run_verb


class CliCommand(BaseCommand):
    """Exits with 0, with 1 for an error of the API, with 2 for arguments that it can't parse."""

    #: Words and verbs, nested to any depth.
    tree: ClassVar[Tree] = {}
    word: ClassVar[str] = ""
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_parsers(parser, self.tree, [self.word])

    def handle(self, *args: Any, **options: Any) -> None:
        code = run_verb(options)
        if code:
            sys.exit(code)
