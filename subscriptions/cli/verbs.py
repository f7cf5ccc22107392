"""Verbs as data: what each takes, and what it does. The management commands make parsers of them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from subscriptions.cli.client import Client

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Said:
    """What a verb has to tell: a resource or a list for standard output, a line for standard error."""

    value: Any = None
    note: str = ""
    columns: Sequence[str] = ("name",)
    #: The format where none was asked for.
    form: str = "yaml"
    #: What failed while the rest was done; the exit code is then 1.
    failures: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """An argument, as `add_argument` takes it."""

    name: str
    help: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def add(self, parser: ArgumentParser) -> None:
        parser.add_argument(self.name, help=self.help.replace("%", "%%"), **self.options)


@dataclass(frozen=True, slots=True)
class Verb:
    """`create`, with its arguments and what it does with them."""

    help: str
    run: Callable[[Client, Options], Said]
    flags: Sequence[Flag] = ()


def flag(name: str, help: str = "", **options: Any) -> Flag:
    return Flag(name, help, options)


def switch(name: str, help: str) -> Flag:
    """`--x` and `--no-x`; None where neither is given."""
    from argparse import BooleanOptionalAction

    return Flag(name, help, {"action": BooleanOptionalAction, "default": None})
