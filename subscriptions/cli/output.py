"""The output of the command line: JSON, YAML, or a table that is aligned in any script."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from typing import Any

import yaml

FORMATS = ("json", "yaml", "table", "none")


def rendered(value: Any, form: str, *, columns: Sequence[str]) -> str:
    """Return a resource or a list of resources as text. `columns` are the paths that a table shows."""
    if form == "none":
        return ""
    if form == "json":
        return json.dumps(value, indent=2, ensure_ascii=False)
    rows = value if isinstance(value, list) else [value]
    if form == "table":
        return table([[_at(row, column) for column in columns] for row in rows], heads=columns)
    return "---\n".join(_yaml(row) for row in rows).rstrip("\n")


def table(rows: Sequence[Sequence[str]], *, heads: Sequence[str]) -> str:
    """Return a table whose columns are as wide as their content."""
    lines = [[_head(head) for head in heads], *rows]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(heads))]
    return "\n".join(
        "  ".join(text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _yaml(row: Any) -> str:
    if isinstance(row, str):
        return row + "\n"
    return yaml.safe_dump(row, sort_keys=True, allow_unicode=True, default_flow_style=False)


def _head(path: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in path.rpartition(".")[2]).upper()


def _at(row: Any, path: str) -> str:
    if isinstance(row, str):
        return row
    for word in path.split("."):
        row = row.get(word) if isinstance(row, dict) else None
    if row is None:
        return ""
    return row if isinstance(row, str) else json.dumps(row, ensure_ascii=False)


def _width(text: str) -> int:
    """Return the width in a terminal. East Asian characters are two cells wide."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else not unicodedata.combining(sign) for sign in text)
