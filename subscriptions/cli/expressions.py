"""`--filter`: the part of gcloud's filter language that lists of resources need."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from subscriptions.cli.errors import CliError

Match = Callable[[Any], bool]
_TERM = re.compile(r"(?P<path>[A-Za-z_][\w.-]*)(?P<operator>!=|!~|=|~|:)(?P<value>.*)", re.S)


def parse_filter(text: str) -> Match:
    """Return a function that returns whether a resource matches. Raises CliError if the text can't be parsed.

    Terms are `path=value`, `path!=value`, `path:part` (contains, or any value for `*`), `path~regex` and `path!~regex`.
    NOT stands before a term; AND, which may be left out, binds more tightly than OR.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        raise CliError("--filter: a quotation mark is not closed") from None
    alternatives: list[list[Match]] = [[]]
    is_negated = False
    for word in words:
        if word == "OR" and alternatives[-1] and not is_negated:
            alternatives.append([])
        elif word == "NOT":
            is_negated = not is_negated
        elif word != "AND":
            alternatives[-1].append(_negated(_term(word)) if is_negated else _term(word))
            is_negated = False
    if is_negated or not all(alternatives):
        raise CliError(f"--filter={text}: a term is missing")
    return lambda row: any(all(match(row) for match in matches) for matches in alternatives)


def _term(text: str) -> Match:
    parsed = _TERM.fullmatch(text)
    if parsed is None:
        raise CliError(f"--filter: {text!r} is no term: give path=value, path:part or path~regex")
    path, operator, value = parsed["path"], parsed["operator"], parsed["value"]
    if operator in ("~", "!~"):
        try:
            pattern = re.compile(value)
        except re.error as error:
            raise CliError(f"--filter: {value!r} is no regular expression: {error}") from None
        matches: Match = lambda row: any(pattern.search(text) for text in _values(row, path))  # noqa: E731
    elif operator == ":":
        part = value.lower()
        matches = lambda row: any(part == "*" or part in text.lower() for text in _values(row, path))  # noqa: E731
    else:
        matches = lambda row: value in _values(row, path)  # noqa: E731
    return _negated(matches) if operator.startswith("!") else matches


def _negated(match: Match) -> Match:
    return lambda row: not match(row)


def _values(row: Any, path: str) -> list[str]:
    """Return the values at a path as texts, and the last segments of full names, so that `name=orders` works."""
    for word in path.split("."):
        row = row.get(word) if isinstance(row, Mapping) else None
    if row is None:
        return []
    values = row if isinstance(row, list) else [row]
    texts = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]
    return [*texts, *(text.rpartition("/")[2] for text in texts if text.startswith("projects/"))]
