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
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
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
    scanner = _Scanner(text)
    comparisons = [_comparison(scanner)]
    while scanner.rest:
        scanner.take(re.compile(r"AND(?![A-Za-z0-9_.])"), "AND")
        comparisons.append(_comparison(scanner))
    return comparisons


class _Scanner:
    """Reads a text from its beginning to its end. `column` is that of the next character which is no blank, from 1."""

    def __init__(self, text: str) -> None:
        self.rest = text.strip()
        self._length = len(text.rstrip())

    @property
    def column(self) -> int:
        return self._length - len(self.rest) + 1

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        """Return what the pattern matches next: its group if it has one."""
        match = pattern.match(self.rest)
        if match is None:
            raise _fault(self.column, expected)
        self.rest = self.rest[match.end() :].lstrip()
        return match[match.re.groups]


def _comparison(scanner: _Scanner) -> Comparison:
    column, path = scanner.column, scanner.take(_WORD, "the name of a field")
    if not _PATH.fullmatch(path):
        raise _fault(column, f"there is no field {clipped(path)}")
    sign = scanner.take(re.compile("!?="), "= or !=")
    function, values = _right_side(scanner)
    return Comparison(path.replace(".label.", ".labels."), sign == "!=", function, values)


def _right_side(scanner: _Scanner) -> tuple[str, tuple[str, ...]]:
    if scanner.rest.startswith('"'):
        return "equal", (_text(scanner),)
    column, function = scanner.column, scanner.take(_WORD, 'a text in "quotes"')
    if function not in _FUNCTIONS or function == "equal":
        raise _fault(column, 'a text in "quotes", or one of one_of, starts_with, ends_with, has_substring')
    scanner.take(re.compile(r"\("), "(")
    values = [_text(scanner)]
    while function == "one_of" and scanner.rest.startswith(","):
        scanner.take(re.compile(","), ",")
        values.append(_text(scanner))
    scanner.take(re.compile(r"\)"), ")")
    return function, tuple(values)


def _text(scanner: _Scanner) -> str:
    return re.sub(r"\\(.)", r"\1", scanner.take(_TEXT, 'a text in "quotes"'), flags=re.DOTALL)


def _fault(column: int, expected: str) -> InvalidArgument:
    return InvalidArgument(f"Could not parse the filter at column {column}: expected {expected}.", field="filter")
