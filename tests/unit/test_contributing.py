"""CONTRIBUTING.md and docs/ name files and tests that exist, and the architecture page has the folders and layers."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documents import ROOT
from tests.layering import LAYERS

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
#: A file, a folder or a test in backticks.
NAMED = re.compile(
    r"`(?P<path>(?:\.ci|bench|deliveries|docs|pushhub|subscriptions|tests)/[\w./-]+)(?:::(?P<test>\w+))?`"
)
SECTIONS = (
    "Add a field to a resource",
    "Add a metric",
    "Add a nack reason",
    "Add a verb to the command line",
    "Add a method to the API",
    "Add a verb in Lua",
)


def missing(text: str) -> list[str]:
    """Return the files, folders and tests that a text names in backticks and that don't exist."""
    return [match[0] for match in NAMED.finditer(text) if not _exists(ROOT / match["path"], match["test"])]


def _exists(path: Path, test: str | None) -> bool:
    return path.exists() and (test is None or test in _functions(path))


def _functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


def section(title: str) -> str:
    return TEXT.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_every_file_and_test_that_a_page_names_exists(page: str) -> None:
    assert missing((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("title", SECTIONS)
def test_a_change_is_a_list_of_files_with_its_tests_and_its_page(title: str) -> None:
    paths = [match["path"] for match in NAMED.finditer(section(title))]
    assert len(paths) >= 4
    assert any(path.startswith("tests/") for path in paths)
    assert any(path.startswith("docs/") for path in paths)


def test_each_invariant_has_a_test() -> None:
    rows = [line for line in section("What a change must not break").splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    assert [row for row in rows if not any(match["test"] for match in NAMED.finditer(row))] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("`tests/unit/test_contributing.py::test_each_invariant_has_a_test`, `docs/`, `docs/spec.md`", []),
        ("`tests/unit/nowhere/`", ["`tests/unit/nowhere/`"]),
        ("`tests/unit/test_contributing.py::test_nothing`", ["`tests/unit/test_contributing.py::test_nothing`"]),
    ],
)
def test_what_does_not_exist_is_found(text: str, names: list[str]) -> None:
    assert missing(text) == names


@pytest.mark.parametrize("app", sorted(LAYERS))
def test_the_architecture_page_has_the_layers_that_are_checked(app: str) -> None:
    table = ARCHITECTURE.partition(f"| layers of `{app}/` |\n|---|\n")[2].partition("\n\n")[0]
    rows = [frozenset(re.findall(r"`(\w+)`", row)) for row in table.splitlines()]
    assert tuple(rows) == LAYERS[app]


@pytest.mark.parametrize("app", ["pushhub", *sorted(LAYERS)])
def test_the_architecture_page_names_each_folder_of_the_code(app: str) -> None:
    folders = {path.parent.name for path in (ROOT / app).glob("*/__init__.py")} - {"management", "migrations"}
    table = ARCHITECTURE.partition("## Where to find it\n")[2].partition("\n## ")[0]
    assert folders == set(re.findall(rf"`{app}/(\w+)/`", table))
