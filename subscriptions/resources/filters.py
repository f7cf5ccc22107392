"""The filter language of subscriptions, pure (docs/spec-messages.md#filters).

expr    := term { AND term } | term { OR term }      mixing the two needs parentheses
term    := [ NOT | - ] factor
factor  := ( expr ) | attributes:key | attributes.key = "v" | attributes.key != "v" | hasPrefix(attributes.key, "v")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NoReturn, Protocol, TypeVar

from pushhub.common.errors import InvalidArgument, clipped

MAX_FILTER_BYTES = 256
T = TypeVar("T")
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


class Algebra(Protocol[T]):
    """What the parts of a filter become: predicates here, Spark columns in the pipeline."""

    #: The words that paths begin with, and whether a path may have several keys; None for a word without keys.
    roots: Mapping[str, bool | None]

    def has(self, root: str, path: Sequence[str]) -> T: ...
    def equal(self, root: str, path: Sequence[str], value: str) -> T: ...
    def starts(self, root: str, path: Sequence[str], start: str) -> T: ...
    def negate(self, operand: T) -> T: ...
    def every(self, terms: Sequence[T]) -> T: ...
    def some(self, terms: Sequence[T]) -> T: ...


class Predicates:
    """Predicates on the attributes of a message."""

    roots: Mapping[str, bool | None] = {"attributes": False}

    def has(self, root: str, path: Sequence[str]) -> Matcher:
        return lambda attributes: path[0] in attributes

    def equal(self, root: str, path: Sequence[str], value: str) -> Matcher:
        return lambda attributes: attributes.get(path[0]) == value

    def starts(self, root: str, path: Sequence[str], start: str) -> Matcher:
        return lambda attributes: path[0] in attributes and attributes[path[0]].startswith(start)

    def negate(self, matcher: Matcher) -> Matcher:
        return lambda attributes: not matcher(attributes)

    def every(self, terms: Sequence[Matcher]) -> Matcher:
        return lambda attributes: all(term(attributes) for term in terms)

    def some(self, terms: Sequence[Matcher]) -> Matcher:
        return lambda attributes: any(term(attributes) for term in terms)


@lru_cache(maxsize=4096)
def matcher(text: str) -> Matcher:
    """Return the predicate of a filter; an empty filter matches everything. Raises InvalidArgument."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_FILTER_BYTES:
        raise InvalidArgument(
            f"The value for filter is too long. You passed {size} bytes in the request, but the maximum "
            f"length is {MAX_FILTER_BYTES} bytes.",
            field="filter",
        )
    return read_filter(text, Predicates()) if text.strip() else lambda attributes: True


def read_filter(text: str, algebra: Algebra[T]) -> T:
    """Return a filter, which isn't empty, in terms of `algebra`. Errors name the position of the fault."""
    return _Parser(text, algebra).whole()


class _Parser(Generic[T]):
    """A recursive-descent parser with one token of lookahead. A filter is short, so parentheses can't nest deep."""

    def __init__(self, text: str, algebra: Algebra[T]) -> None:
        self._text = text
        self._algebra = algebra
        self._at = 0
        self._next()

    def whole(self) -> T:
        result = self._expression()
        if self._kind:
            self._refuse("AND, OR or the end of the filter")
        return result

    def _expression(self) -> T:
        terms = [self._term()]
        joint = self._symbol if self._is_word("AND", "OR") else ""
        while joint and self._is_word(joint):
            self._next()
            terms.append(self._term())
        if self._is_word("AND", "OR"):
            self._refuse(f"parentheses, as {joint} and {self._symbol} stand beside each other")
        if len(terms) == 1:
            return terms[0]
        return self._algebra.every(terms) if joint == "AND" else self._algebra.some(terms)

    def _term(self) -> T:
        if not (self._is_word("NOT") or self._symbol == "-"):
            return self._factor()
        self._next()
        return self._algebra.negate(self._factor())

    def _factor(self) -> T:
        if self._symbol == "(":
            self._next()
            inner = self._expression()
            self._take(")")
            return inner
        if self._is_word("hasPrefix"):
            return self._prefix()
        root = self._root()
        if self._symbol == ":" and self._algebra.roots[root] is not None:
            self._next()
            return self._algebra.has(root, self._keys(root))
        path = self._path(root)
        sign = self._symbol
        if sign not in ("=", "!="):
            self._refuse("= or !=")
        self._next()
        is_equal = self._algebra.equal(root, path, self._string())
        return is_equal if sign == "=" else self._algebra.negate(is_equal)

    def _prefix(self) -> T:
        self._next()
        self._take("(")
        root = self._root()
        path = self._path(root)
        self._take(",")
        start = self._string()
        self._take(")")
        return self._algebra.starts(root, path, start)

    def _root(self) -> str:
        if not self._is_word(*self._algebra.roots):
            self._refuse(" or ".join(self._algebra.roots))
        root = self._symbol
        self._next()
        return root

    def _path(self, root: str) -> list[str]:
        if self._algebra.roots[root] is None:
            return []
        self._take(".")
        return self._keys(root)

    def _keys(self, root: str) -> list[str]:
        keys = [self._key()]
        while self._algebra.roots[root] and self._symbol == ".":
            self._next()
            keys.append(self._key())
        return keys

    def _key(self) -> str:
        if self._kind == "word":
            key = self._symbol
            self._next()
            return key
        return self._string("an attribute's key")

    def _string(self, expected: str = "a string in double quotes") -> str:
        if self._kind != "string":
            self._refuse(expected)
        text = ESCAPE.sub(self._unescaped, self._symbol[1:-1])
        self._next()
        # A character beyond U+FFFF may be written as two escapes, as in JSON.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")

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
