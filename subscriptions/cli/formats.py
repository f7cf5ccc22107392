"""Output formats: JSON, YAML, values, and tables that are aligned in any script."""

from __future__ import annotations

import json
import re
import unicodedata
from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PLAIN_FORMATS = ("json", "yaml", "table", "none")
#: Formats with the paths of their columns in parentheses, which only a table may omit.
COLUMN_FORMATS = ("table", "value", "csv")
#: What would break a line of a table, or steer the terminal. A message's data may have it.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: The same without line breaks and tabs.
STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Format:
    """A format with the paths and labels of its columns. Without columns, the command chooses them."""

    name: str
    columns: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


def parse_format(text: str) -> Format:
    """Parse `json`, `table(name, pushConfig.pushEndpoint:label=URL)` or `value(name)`, as in gcloud."""
    parsed = re.fullmatch(r"(\w+)(?:\[[^\]]*\])?(?:\((.*)\))?", text.strip(), re.S)
    name, inside = (parsed[1], parsed[2]) if parsed is not None else ("", None)
    if inside is None and name in PLAIN_FORMATS:
        return Format(name)
    columns = [part.strip() for part in (inside or "").split(",") if part.strip()]
    if name not in COLUMN_FORMATS or not columns:
        raise ArgumentTypeError(f"{text!r}: give json, yaml, table, none, table(name, ...), value(name) or csv(name)")
    pairs = [column.partition(":label=") for column in columns]
    paths = tuple(re.sub(r"(\.\w+\(\)|:\w+=.*)+$", "", path) for path, _, _ in pairs)
    return Format(name, paths, tuple(label.strip("'\"") or _head(path) for path, _, label in pairs))


def rendered(value: Any, form: Format, *, columns: Sequence[str]) -> str:
    """Return the text of a resource or of a list of them. `columns` are the paths for a format without columns."""
    if form.name == "none":
        return ""
    if form.name == "json":
        return harmless(json.dumps(value, indent=2, ensure_ascii=False))
    rows = value if isinstance(value, list) else [value]
    if form.name == "yaml":
        return "---\n".join(_yaml(row) for row in rows).rstrip("\n")
    paths = form.columns or tuple(columns)
    cells = [[_at(row, path) for path in paths] for row in rows]
    if form.name == "value":
        return "\n".join("\t".join(row) for row in cells)
    heads = form.labels or tuple(_head(path) for path in paths)
    if form.name == "csv":
        return "\n".join(",".join(map(_quoted, row)) for row in [form.columns, *cells])
    return _aligned([list(heads), *cells])


def table(rows: Sequence[Sequence[str]], *, heads: Sequence[str]) -> str:
    """Return a table of texts. `heads` are field names, whose heads are in upper case."""
    return _aligned([[_head(head) for head in heads], *rows])


def harmless(text: str) -> str:
    """Return a text in which JSON's escapes stand for what steers the terminal.

    Publishers choose attributes, and others the code of functions, whose errors may quote a message.
    """
    return STEERING.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    lines = [[CONTROL.sub(lambda sign: repr(sign[0])[1:-1], text) for text in line] for line in lines]
    widths = [max(_width(line[index]) for line in lines) for index in range(len(lines[0]))]
    return "\n".join(
        "  ".join(text + " " * (width - _width(text)) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(sign in text for sign in ',"\n') else text


def _yaml(row: Any) -> str:
    if isinstance(row, str):
        return row + "\n"
    import yaml  # would double the time that the program takes to start

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
    """Return the width of a text in a terminal. East Asian characters take two cells."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else not unicodedata.combining(sign) for sign in text)
