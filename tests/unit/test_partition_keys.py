"""docs/scale.md lists the statements that would reach all partitions, if subscription and topic chose those."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scale.md"
HEADING = "### Statements without the key"


@dataclass(frozen=True)
class Table:
    """A table, its model, and the column that would choose the partition."""

    name: str
    model: str
    key: str

    def is_narrowed(self, code: ast.AST) -> bool | None:
        """Return whether a piece of code that reads or changes the table names the key; None for other code."""
        nodes = list(ast.walk(code))
        sql = " ".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
        if re.search(rf"\b(FROM|JOIN|UPDATE) {self.name}\b", sql):
            names = {node.id for node in nodes if isinstance(node, ast.Name)}
            is_by_subselect = re.search(r"WHERE id IN \( \)", sql)
            return bool(is_by_subselect) or f"{self.key}_id = " in sql or "_IS_OF_ATTEMPT" in names
        if any(ast.unparse(node) == f"{self.model}.objects" for node in nodes if isinstance(node, ast.Attribute)):
            words = {node.arg for node in nodes if isinstance(node, ast.keyword)}
            return bool(words & {self.key, f"{self.key}_id", f"{self.key}__in"})
        return None


TABLES = (Table("deliveries_delivery", "Delivery", "subscription"), Table("deliveries_message", "Message", "topic"))


def expressions(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the expressions of each statement, without those of functions and classes."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            continue
        for _, value in ast.iter_fields(statement):
            values = value if isinstance(value, list) else [value]
            inner = [item for item in values if isinstance(item, ast.stmt)]
            yield from expressions(inner)
            yield from (item for item in values if isinstance(item, ast.AST) and not isinstance(item, ast.stmt))


def reaching_all(source: str) -> set[str]:
    """Return the names of functions and constants of a module with a statement that doesn't name the key."""
    tree = ast.parse(source)
    bodies = {
        **{
            node.targets[0].id: [node]
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        },
        **{node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)},
    }
    return {
        name
        for name, body in bodies.items()
        if any(table.is_narrowed(code) is False for code in expressions(body) for table in TABLES)
    }


def found() -> set[str]:
    paths = sorted((ROOT / "deliveries").rglob("*.py"))
    return {
        f"{path.relative_to(ROOT / 'deliveries').with_suffix('')}.{name}"
        for path in paths
        if "migrations" not in path.parts
        for name in reaching_all(path.read_text())
    }


def listed() -> set[str]:
    section = PAGE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for first in firsts for name in re.findall(r"`([\w/.]+)`", first)}


def test_the_page_lists_the_statements_that_would_reach_all_partitions() -> None:
    assert listed() == found()


@pytest.mark.parametrize(
    ("code", "is_listed"),
    [
        ('fetch_rows("SELECT id FROM deliveries_delivery WHERE message_id = %s", [1])', True),
        ('fetch_rows("SELECT id FROM deliveries_delivery WHERE subscription_id = %s", [1])', False),
        ("return Delivery.objects.filter(message=1)", True),
        ("return Delivery.objects.filter(message=1, subscription=2)", False),
        ("with lock():\n        Message.objects.filter(pk=1).delete()", True),
        ("return Topic.objects.filter(pk=1)", False),
    ],
)
def test_a_statement_without_the_key_is_noticed(code: str, is_listed: bool) -> None:
    assert reaching_all(f"def read():\n    {code}\n") == ({"read"} if is_listed else set())
