"""The query parameters that every method of Google's REST APIs takes and that change the response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pushhub.common.errors import InvalidArgument, clipped

MAX_FIELDS_CHARACTERS = 2048
MAX_DEPTH = 16
WORDS = {"true": True, "1": True, "false": False, "0": False}
TOKENS = re.compile(r"[A-Za-z0-9_$.-]+|[*,/()]")
#: What is no name: the tokens between names, and the end.
SIGNS = (",", "/", "(", ")", "")


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
    words = TOKENS.findall(text)
    if len(text) > MAX_FIELDS_CHARACTERS or "".join(words) != text:
        raise _invalid(text)
    # The selections from the whole answer to the last name, and how many of them are around each open parenthesis.
    path = [Selection(is_whole=not text)]
    around = [1]
    before = ","
    for word in [*words, ""] if text else ():
        is_name = word not in SIGNS
        # A name follows these signs and the beginning, and nothing else does. Behind a parenthesis, a path has ended.
        if is_name != (before in (",", "/", "(")) or (before == ")" and word in ("/", "(")):
            raise _invalid(text)
        if is_name:
            path.append(path[-1].fields.setdefault(word, Selection()))
        elif word == "(":
            around.append(len(path))
        elif word != "/":
            path[-1].is_whole |= before != ")"
            del path[around[-1] :]
            if word == ")":
                around.pop()
        if len(path) > MAX_DEPTH + 1 or not around or (word == "" and len(around) > 1):
            raise _invalid(text)
        before = word
    return path[0]


def _invalid(text: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid field selection {clipped(text)}.", field="fields")
