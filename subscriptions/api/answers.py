"""The query parameters that every method of Google's REST APIs takes and that change the response."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pushhub.common.errors import InvalidArgument, clipped

MAX_FIELDS_CHARACTERS = 2048
MAX_DEPTH = 16
WORDS = {"true": True, "1": True, "false": False, "0": False}
TOKENS = re.compile(r"[A-Za-z0-9_$.-]+|[*,/()]")


@dataclass(slots=True)
class Selection:
    """Which fields of an object the caller selects, each with a selection inside of it."""

    fields: dict[str, Selection] = field(default_factory=dict)
    is_whole: bool = False

    def of(self, value: Any) -> Any:
        """Return the selected parts of a value in JSON form. The selection applies to each item of a list."""
        if self.is_whole:
            return value
        if isinstance(value, list):
            return [self.of(item) for item in value]
        if not isinstance(value, Mapping):
            return value
        every = self.fields.get("*")
        chosen = {name: self.fields.get(name, every) for name in value}
        return {name: selection.of(value[name]) for name, selection in chosen.items() if selection is not None}


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of a response: its selected fields, and whether it is indented."""

    selection: Selection
    is_pretty: bool

    @classmethod
    def read(cls, query: Mapping[str, str]) -> AnswerForm:
        """Read the form. Raises InvalidArgument, with the parameter's name, for a form that PushHub doesn't have."""
        for name in ("alt", "$alt"):
            # Google's clients add `;enum-encoding=int` and also understand the names of enum values.
            if query.get(name, "json").partition(";")[0] != "json":
                raise InvalidArgument(f"The only value of {name} is json, not {clipped(query[name])}.", field=name)
        pretty = query.get("prettyPrint") or query.get("$prettyPrint") or "false"
        if pretty not in WORDS:
            raise InvalidArgument(f"prettyPrint must be true or false, not {clipped(pretty)}.", field="prettyPrint")
        return cls(read_selection(query.get("fields") or query.get("$fields") or ""), WORDS[pretty])


#: The form of a response before the request's form was read, such as an early error.
PLAIN = AnswerForm(Selection(is_whole=True), is_pretty=False)


def read_selection(text: str) -> Selection:
    """Read a field selector, for example `subscriptions(name,pushConfig/pushEndpoint),nextPageToken`."""
    selection = Selection(is_whole=not text)
    if not text:
        return selection
    words = TOKENS.findall(text)
    if len(text) > MAX_FIELDS_CHARACTERS or "".join(words) != text:
        raise _invalid(text)
    tokens = iter([*words, ""])
    if _read_list(tokens, selection, text, depth=1):
        raise _invalid(text)
    return selection


def _read_list(tokens: Iterator[str], selection: Selection, text: str, *, depth: int) -> str:
    """Read selectors up to a closing parenthesis or the end. Returns that token."""
    while True:
        end = _read_path(tokens, selection, text, depth=depth)
        if end != ",":
            return end


def _read_path(tokens: Iterator[str], selection: Selection, text: str, *, depth: int) -> str:
    """Read `a/b/c` or `a/b(...)`. Returns the token behind it: a comma, a closing parenthesis or the end."""
    while True:
        name = next(tokens)
        if depth > MAX_DEPTH or name in ("", ",", "/", "(", ")"):
            raise _invalid(text)
        selection = selection.fields.setdefault(name, Selection())
        depth += 1
        end = next(tokens)
        if end == "/":
            continue
        if end != "(":
            selection.is_whole = True
        elif _read_list(tokens, selection, text, depth=depth) == ")":
            end = next(tokens)
        if end not in (",", ")", ""):
            raise _invalid(text)
        return end


def _invalid(text: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid field selection {clipped(text)}.", field="fields")
