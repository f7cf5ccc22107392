"""Every command of PushHub that a page names exists and has the flags, also where no test can run it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from pushhub import cli
from subscriptions.cli import main as nouns
from tests.documents import ROOT, files_with_citations

#: The changelog names what former versions had.
PAGES = [path for path in files_with_citations() if path.suffix == ".md" and path.name != "CHANGELOG.md"]
FENCED = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
BLOCK = re.compile(r"^```(json|python|sh|yaml)\n(.*?)^```$", re.M | re.S)
INLINE = re.compile(r"`(?:pushhub|(?:\S*python )?manage\.py)\s+([^`]+)`")
#: Where a command begins in a line of a shell, and where it ends.
LINE = re.compile(r"(?:(?:^|[$<]\(|^\S+=\S+ |&& )pushhub|manage\.py) +(.+)", re.M)
END = re.compile(r"\s(?:[#&|;>]|&&)|\)")
PLACEHOLDER = re.compile(r"[A-Z]+$|\.\.\.|…|\[")


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the words after the program's name of each command in a page."""
    text = text.replace("\\\n", " ")
    for match in INLINE.finditer(FENCED.sub("", text)):
        yield match[1].split()
    for block in FENCED.findall(text):
        for match in LINE.finditer(block):
            yield END.split(re.sub(r"'[^']*'", "text", match[1]))[0].split()


def faults(words: list[str]) -> list[str]:
    """Return the words that no command or no parser knows."""
    name, *rest = words
    known = (*nouns.WORDS, *cli.COMMANDS, *cli.management_commands())
    if PLACEHOLDER.match(name) or name == "--version":
        return []
    if name not in known:
        return [name]
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    if name in nouns.WORDS:
        path = [name]
        while (choices := nouns.candidates([*path, ""])) and rest and not PLACEHOLDER.match(rest[0]):
            if rest[0] not in choices:
                return [rest[0]]
            path.append(rest.pop(0))
        has = set(nouns.candidates([*path, "--"])) if not choices else set(flags)
    elif name in cli.PARSERS:
        has = set(nouns.flags_of(import_module(cli.PARSERS[name]).parser(), "--"))
    else:
        app = get_commands().get(name)
        has = flags_below(load_command_class(app, name).create_parser("pushhub", name)) if app else set()
    return sorted({*flags} - has - {"--help"})


def flags_below(parser: ArgumentParser) -> set[str]:
    """Return the flags of a parser and of its subcommands."""
    below = [action for action in parser._actions if isinstance(action, _SubParsersAction)]
    return {*parser._option_string_actions}.union(
        *(flags_below(choice) for action in below for choice in action.choices.values())
    )


def read_shell(text: str) -> None:
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


READERS = {"json": json.loads, "python": ast.parse, "sh": read_shell, "yaml": yaml.safe_load}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_block_of_a_page_can_be_read(page: Path) -> None:
    for language, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        READERS[language](text)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_exist_and_have_its_flags(page: Path) -> None:
    commands = [*commands_in(page.read_text(encoding="utf-8"))]
    wrong = {" ".join(words): found for words in commands if (found := faults(words))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("`pushhub topics create orders --project=demo`", []),
        ("`pushhub topics make orders`", ["make"]),
        ("`manage.py nothing`", ["nothing"]),
        ("```sh\nA=$(pushhub topics describe orders --colour)    # --not-a-flag\n```\n", ["--colour"]),
        ("```sh\npushhub perimeter create x \\\n    --nothing\n```\n", ["--nothing"]),
        ("```sh\npushhub receive --port 8080 --loud &\n```\n", ["--loud"]),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, wrong: list[str]) -> None:
    assert [fault for words in commands_in(text) for fault in faults(words)] == wrong
