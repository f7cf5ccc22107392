"""The filter language of subscriptions, pure (pubsub-spec.md, section 4.3).

expr    := term { AND term } | term { OR term }      mixing the two needs parentheses
term    := [ NOT | - ] factor
factor  := ( expr ) | attributes:key | attributes.key = "v" | attributes.key != "v" | hasPrefix(attributes.key, "v")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NoReturn

from pushhub.errors import InvalidArgument, clipped

MAX_FILTER_BYTES = 256
Attributes = Mapping[str, str]
Matcher = Callable[[Attributes], bool]

TOKEN = re.compile(
    r"""\s*(?:
        (?P<word>[A-Za-z0-9_][A-Za-z0-9_-]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<sign>!=|[=:.,()-])
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
BLANKS = re.compile(r"\s*", re.ASCII)
ESCAPE = re.compile(r'\\(?:u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})|([0-7]{3})|(["\\/abfnrtv?\'])|(.))', re.DOTALL)
NAMED = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@lru_cache(maxsize=4096)
def matcher(text: str) -> Matcher:
    """Whether a message with such attributes passes; an empty filter lets all pass. Raises InvalidArgument."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_FILTER_BYTES:
        raise InvalidArgument(
            f"The value for filter is too long. You passed {size} bytes in the request, but the maximum "
            f"length is {MAX_FILTER_BYTES} bytes.",
            field="filter",
        )
    return _Parser(text).whole() if text.strip() else _everything


def _everything(_attributes: Attributes) -> bool:
    return True


class _Parser:
    """Reads one token ahead. A filter is short, so parentheses cannot nest deep."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._next()

    def whole(self) -> Matcher:
        found = self._expression()
        if self._kind:
            self._refuse("AND, OR or the end of the filter")
        return found

    def _expression(self) -> Matcher:
        terms = [self._term()]
        joint = self._symbol if self._is_word("AND", "OR") else ""
        while joint and self._is_word(joint):
            self._next()
            terms.append(self._term())
        if self._is_word("AND", "OR"):
            self._refuse(f"parentheses, as {joint} and {self._symbol} stand beside each other")
        if len(terms) == 1:
            return terms[0]
        if joint == "AND":
            return lambda attributes: all(term(attributes) for term in terms)
        return lambda attributes: any(term(attributes) for term in terms)

    def _term(self) -> Matcher:
        if not (self._is_word("NOT") or self._symbol == "-"):
            return self._factor()
        self._next()
        inner = self._factor()
        return lambda attributes: not inner(attributes)

    def _factor(self) -> Matcher:
        if self._symbol == "(":
            self._next()
            inner = self._expression()
            self._take(")")
            return inner
        if self._is_word("hasPrefix"):
            return self._prefix()
        self._take("attributes")
        if self._symbol == ":":
            self._next()
            wanted = self._key()
            return lambda attributes: wanted in attributes
        key = self._attribute()
        sign = self._symbol
        if sign not in ("=", "!="):
            self._refuse("= or !=")
        self._next()
        value = self._string()
        if sign == "=":
            return lambda attributes: attributes.get(key) == value
        return lambda attributes: attributes.get(key) != value

    def _prefix(self) -> Matcher:
        self._next()
        self._take("(")
        self._take("attributes")
        key = self._attribute()
        self._take(",")
        start = self._string()
        self._take(")")
        return lambda attributes: key in attributes and attributes[key].startswith(start)

    def _attribute(self) -> str:
        self._take(".")
        return self._key()

    def _key(self) -> str:
        if self._kind == "word":
            key = self._symbol
            self._next()
            return key
        return self._string("an attribute's key")

    def _string(self, expected: str = "a string in double quotes") -> str:
        if self._kind != "string":
            self._refuse(expected)
        found = ESCAPE.sub(self._unescaped, self._symbol[1:-1])
        self._next()
        return found

    def _unescaped(self, match: re.Match[str]) -> str:
        unicode, hexadecimal, octal, named, unknown = match.groups()
        if unknown is not None:
            self._refuse(f"a known escape and not \\{unknown}")
        if named is not None:
            return NAMED.get(named, named)
        return chr(int(octal, 8) if octal else int(unicode or hexadecimal, 16))

    def _take(self, token: str) -> None:
        if self._kind == "string" or self._symbol != token:
            self._refuse(token)
        self._next()

    def _is_word(self, *words: str) -> bool:
        return self._kind == "word" and self._symbol in words

    def _next(self) -> None:
        match = TOKEN.match(self._text, self._at)
        self._start = BLANKS.match(self._text, self._at).end()  # type: ignore[union-attr]
        self._kind = self._symbol = ""
        if match is not None:
            self._kind = str(match.lastgroup)
            self._symbol = match[self._kind]
            self._at = match.end()
        elif self._start < len(self._text):
            self._refuse("an attribute, a string or a sign of the filter language")

    def _refuse(self, expected: str) -> NoReturn:
        raise InvalidArgument(
            f"Invalid filter given (filter={clipped(self._text)}): {expected} is expected at character "
            f"{self._start + 1}.",
            field="filter",
        )
