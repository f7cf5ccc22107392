"""The filter of a list of time series, a part of Cloud Monitoring's grammar: comparisons joined by AND.

metric.type = "pubsub.googleapis.com/subscription/push_request_count"
AND resource.labels.subscription_id = starts_with("orders-") AND metric.labels.response_class != "ack"
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pushhub.common.errors import InvalidArgument, clipped

MAX_CHARACTERS = 2048
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<word>[A-Za-z_][A-Za-z0-9_.]*)|(?P<sign>!=|=|\(|\)|,))', re.DOTALL
)
_FUNCTIONS: Mapping[str, Callable[[str, Sequence[str]], bool]] = {
    "equal": lambda value, arguments: value == arguments[0],
    "one_of": lambda value, arguments: value in arguments,
    "starts_with": lambda value, arguments: value.startswith(arguments[0]),
    "ends_with": lambda value, arguments: value.endswith(arguments[0]),
    "has_substring": lambda value, arguments: arguments[0] in value,
}
_PATH = re.compile(r"(?:metric\.type|resource\.type|project|(?:metric|resource)\.labels?\.[a-z_]+)")


@dataclass(frozen=True, slots=True)
class Comparison:
    """`path` compared with values; `function` is a name of _FUNCTIONS."""

    path: str
    is_negated: bool
    function: str
    values: tuple[str, ...]

    def holds(self, value: str) -> bool:
        return _FUNCTIONS[self.function](value, self.values) is not self.is_negated


def parse_filter(text: str) -> list[Comparison]:
    """Return the comparisons, all of which must hold. InvalidArgument names the column of the first error."""
    if len(text) > MAX_CHARACTERS:
        raise InvalidArgument(f"The filter is longer than {MAX_CHARACTERS} characters.", field="filter")
    parser = _Parser(text)
    comparisons = [parser.comparison()]
    while parser.kind:
        parser.expect("AND")
        comparisons.append(parser.comparison())
    return comparisons


class _Parser:
    """Reads tokens. The current one is `kind` and `value` at `column`; an empty kind is the end of the text."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._end = 0
        self.kind = self.value = ""
        self.column = 1
        self._next()

    def comparison(self) -> Comparison:
        column, path = self.column, self._take("word", "the name of a field")
        if not _PATH.fullmatch(path):
            raise _fault(column, f"there is no field {clipped(path)}")
        sign_column, sign = self.column, self._take("sign", "= or !=")
        if sign not in ("=", "!="):
            raise _fault(sign_column, "= or !=")
        function, values = self._right_side()
        return Comparison(path.replace(".label.", ".labels."), sign == "!=", function, values)

    def expect(self, word: str) -> None:
        if self.value != word:
            raise _fault(self.column, word)
        self._next()

    def _right_side(self) -> tuple[str, tuple[str, ...]]:
        if self.kind == "text":
            return "equal", (self._take("text", "a text"),)
        column, function = self.column, self._take("word", 'a text in "quotes"')
        if function not in _FUNCTIONS or function == "equal":
            raise _fault(column, 'a text in "quotes", or one of one_of, starts_with, ends_with, has_substring')
        self.expect("(")
        values = [self._take("text", 'a text in "quotes"')]
        while self.value == "," and function == "one_of":
            self._next()
            values.append(self._take("text", 'a text in "quotes"'))
        self.expect(")")
        return function, tuple(values)

    def _take(self, kind: str, expected: str) -> str:
        if self.kind != kind:
            raise _fault(self.column, expected)
        value = self.value
        self._next()
        return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL) if kind == "text" else value

    def _next(self) -> None:
        self.column = self._end + 1
        if self._end == len(self._text):
            self.kind = self.value = ""
            return
        token = _TOKEN.match(self._text, self._end)
        if token is None:
            raise _fault(self.column, "a name, = or a text in quotes")
        self.kind = token.lastgroup or ""
        self.value = token[self.kind]
        self.column = token.start(self.kind) + 1
        self._end = token.end()


def _fault(column: int, expected: str) -> InvalidArgument:
    return InvalidArgument(f"Could not parse the filter at column {column}: expected {expected}.", field="filter")
