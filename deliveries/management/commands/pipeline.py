"""`manage.py pipeline rollup|backfill|archive|replay|ingest|report`: the data pipeline on Spark."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from django.core.management.base import CommandError, CommandParser

from deliveries.pipeline import cli, needs
from pushhub.common.commands import OperatorCommand


class Command(OperatorCommand):
    help = "The data pipeline: metrics, archive, replay, ingest and report."

    def add_arguments(self, parser: CommandParser) -> None:
        subparsers = parser.add_subparsers(dest="subcommand", required=True, metavar="SUBCOMMAND")
        for name in subcommands():
            module = subcommand(name)
            words = module.HELP
            child = subparsers.add_parser(name, help=words[:1].lower() + words[1:], description=words)
            module.add_arguments(child)

    def handle(self, *args: Any, **options: Any) -> None:
        module = subcommand(options.pop("subcommand"))
        lacking = needs.missing() if getattr(module, "NEEDS_SPARK", True) else ""
        if lacking:
            raise CommandError(lacking)
        module.run(**{**options, "stdout": self.stdout, "stderr": self.stderr})


def subcommands() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(cli.__path__))


def subcommand(name: str) -> ModuleType:
    return importlib.import_module(f"{cli.__name__}.{name}")
