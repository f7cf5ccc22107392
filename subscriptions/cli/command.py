"""A management command made of verbs: its parsers, its exit codes, and errors in one line."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandParser

from subscriptions.cli.client import CliError, client_of
from subscriptions.cli.output import FORMATS, rendered
from subscriptions.cli.verbs import Result, Verb

Tree = Mapping[str, "Verb | Tree"]
PROJECT_VARIABLES = ("PUSHHUB_PROJECT", "CLOUDSDK_CORE_PROJECT", "GOOGLE_CLOUD_PROJECT")


class CliCommand(BaseCommand):
    """Exits with 0, with 1 for an error of the API, with 2 for arguments that it can't parse."""

    #: Words and verbs, nested to any depth.
    tree: ClassVar[Tree] = {}
    word: ClassVar[str] = ""
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        self._add(parser, self.tree, [self.word])

    def _add(self, parser: ArgumentParser, tree: Tree, path: list[str]) -> None:
        children = parser.add_subparsers(required=True, metavar=" | ".join(tree))
        for name, node in tree.items():
            text = node.help if isinstance(node, Verb) else f"{', '.join(node)}"
            child = children.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
            if isinstance(node, Verb):
                for flag in node.flags:
                    flag.add(child)
                _add_common(child)
                child.set_defaults(verb=node, path=[*path, name])
            else:
                self._add(child, node, [*path, name])

    def handle(self, *args: Any, **options: Any) -> None:
        verb: Verb = options["verb"]
        try:
            options["project"] = _project(verb, options)
            self._tell(verb.run(client_of(options), options), options["format"])
        except CliError as error:
            self.stderr.write(f"ERROR: ({'.'.join(options['path'])}) {error}")
            sys.exit(1)

    def _tell(self, result: Result, form: str | None) -> None:
        if result.note:
            self.stderr.write(result.note, self.style.SUCCESS)
        if result.form == "text" and form in (None, "table"):
            self.stdout.write(result.value)
        elif result.value is not None:
            text = rendered(result.value, form or result.form, columns=result.columns)
            if text:
                self.stdout.write(text)


def _add_common(parser: ArgumentParser) -> None:
    common = parser.add_argument_group("which PushHub, as whom")
    common.add_argument("--project", help="default: PUSHHUB_PROJECT, CLOUDSDK_CORE_PROJECT or GOOGLE_CLOUD_PROJECT")
    common.add_argument("--url", help="default: PUSHHUB_URL, or http:// and PUSHHUB_HTTP")
    common.add_argument("--access-token-file", help="a file with an access token (default: the token in PUSHHUB_TOKEN)")
    common.add_argument("--key-file", help="a service account's key file")
    common.add_argument("--format", choices=FORMATS)


def _project(verb: Verb, options: Mapping[str, Any]) -> str:
    """Return the project of short names. It is required if an argument is a short name."""
    project = options["project"] or next((os.environ[name] for name in PROJECT_VARIABLES if os.environ.get(name)), "")
    if project:
        return str(project)
    values = [options.get(flag.name.lstrip("-").replace("-", "_")) for flag in verb.flags]
    texts = [text for value in values for text in (value if isinstance(value, list) else [value])]
    if options["path"][0] == "projects" or any(str(text).startswith("projects/") for text in texts):
        return ""
    if options["path"][:2] == ["iam", "service-accounts"] and options["path"][2] not in ("create", "list"):
        return ""
    raise CliError("no project: give --project, or set PUSHHUB_PROJECT")
