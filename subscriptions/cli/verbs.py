"""Verbs as data: the arguments and the function of each. The management commands build parsers from them."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from subscriptions.cli.client import Client
from subscriptions.cli.errors import CliError

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a verb: a resource or a list for standard output, a line for standard error."""

    value: Any = None
    note: str = ""
    columns: Sequence[str] = ("name",)
    #: The format, unless the caller chooses another.
    form: str = "yaml"
    #: Errors of the parts that failed. With any, the exit code is 1.
    failures: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """An argument in the form of `add_argument`."""

    name: str
    help: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its name among the options."""
        return self.name.lstrip("-").replace("-", "_")

    def add(self, parser: ArgumentParser) -> None:
        parser.add_argument(self.name, help=self.help.replace("%", "%%"), **self.options)


class Verb:
    """A verb such as `create`, with its arguments and its function."""

    def __init__(self, help: str, run: Callable[[Client, Options], Result], *flags: Flag) -> None:
        self.help, self.run, self.flags = help, run, flags


def flag(name: str, help: str = "", **options: Any) -> Flag:
    return Flag(name, help, options)


def switch(name: str, help: str) -> Flag:
    """Return the flags `--x` and `--no-x`, whose value is None if neither is set."""
    return Flag(name, help, {"action": BooleanOptionalAction, "default": None})


def check_needs(options: Options, name: str, flags: Sequence[Flag], *, why: str = "") -> None:
    """Raise CliError if one of these flags is given without the one that it belongs to: it would be ignored."""
    if options[Flag(name).key]:
        return
    for other in flags:
        if options[other.key] is not None:
            raise CliError(f"{other.name} needs {name}{why}")


def check_either(options: Options, flags: Sequence[Flag], others: Sequence[Flag]) -> None:
    """Raise CliError if one of these flags is given together with one of the others: one would be ignored."""
    first, second = ([flag.name for flag in each if options[flag.key]] for each in (flags, others))
    if first and second:
        raise CliError(f"give either {first[0]} or {second[0]}")


def cleared_by(options: Options, flags: Mapping[str, tuple[Flag, Sequence[Flag]]]) -> list[str]:
    """Return the fields that flags clear: by field, the flag for that, and those that set it."""
    for clear, setting in flags.values():
        check_either(options, [clear], setting)
    return [field for field, (clear, _) in flags.items() if options[clear.key]]


def mask_of(fields: Sequence[str]) -> str:
    """Return the update mask of the fields that an update changes. Raises CliError if there are none."""
    if not fields:
        raise CliError("nothing to change: give a flag for what is to change")
    return ",".join(fields)
