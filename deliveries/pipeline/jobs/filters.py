"""Filters of a replay as Spark's columns: the subscription filter's grammar, ordering keys, and paths into JSON data.

    attributes.kind = "order" AND NOT hasPrefix(json.customer.name, "test") AND orderingKey != "1"

A user's filter becomes columns and values, never SQL, because SQL in Spark could run anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pushhub.common.errors import InvalidArgument
from subscriptions.resources.filters import read_filter

if TYPE_CHECKING:
    from pyspark.sql import Column

MAX_FILTER_CHARACTERS = 1000
#: Only such keys are passed on, because Spark has a path language of its own.
JSON_KEY = re.compile(r"[A-Za-z0-9_ -]{1,100}", re.ASCII)
#: The words that paths begin with, and whether a path may have several keys; an ordering key has none.
ROOTS: Mapping[str, bool | None] = {"attributes": False, "json": True, "orderingKey": None}


def filter_column(text: str) -> Column:
    """Return whether a message passes, as a column. Raises InvalidArgument, which names the bad character."""
    from pyspark.sql import functions as f

    check_filter(text)
    return read_filter(text, Columns()) if text.strip() else f.lit(True)


def check_filter(text: str) -> None:
    """Raise InvalidArgument as `filter_column` does, without Spark."""
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidArgument(
            f"The filter has {len(text)} characters; {MAX_FILTER_CHARACTERS} are the most.", field="filter"
        )
    if text.strip():
        read_filter(text, Checks())


class Checks:
    """Checks the parts of a filter."""

    roots = ROOTS

    def has(self, root: str, path: Sequence[str]) -> None:
        _check(root, path)

    def equal(self, root: str, path: Sequence[str], value: str) -> None:
        _check(root, path)

    def starts(self, root: str, path: Sequence[str], start: str) -> None:
        _check(root, path)

    def negate(self, term: None) -> None: ...
    def every(self, terms: Sequence[None]) -> None: ...
    def some(self, terms: Sequence[None]) -> None: ...


class Columns:
    """Turns the parts of a filter into columns that are never null."""

    roots = ROOTS

    def has(self, root: str, path: Sequence[str]) -> Column:
        return _value(root, path).isNotNull()

    def equal(self, root: str, path: Sequence[str], value: str) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(_value(root, path) == f.lit(value), f.lit(False))

    def starts(self, root: str, path: Sequence[str], start: str) -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(_value(root, path).startswith(f.lit(start)), f.lit(False))

    def negate(self, term: Column) -> Column:
        return ~term

    def every(self, terms: Sequence[Column]) -> Column:
        return _joined(terms, "AND")

    def some(self, terms: Sequence[Column]) -> Column:
        return _joined(terms, "OR")


def _check(root: str, path: Sequence[str]) -> None:
    for key in path if root == "json" else ():
        if not JSON_KEY.fullmatch(key):
            raise InvalidArgument(f"A key of JSON data cannot be {key!r} in a filter.", field="filter")


def _value(root: str, path: Sequence[str]) -> Column:
    from pyspark.sql import functions as f

    if root == "orderingKey":
        return f.coalesce(f.col("ordering_key"), f.lit(""))
    if root == "attributes":
        return f.try_element_at(f.col("attributes"), f.lit(path[0]))
    return f.get_json_object(f.col("data").cast("string"), "$" + "".join(f"['{key}']" for key in path))


def _joined(terms: Sequence[Column], word: str) -> Column:
    joined = terms[0]
    for term in terms[1:]:
        joined = joined & term if word == "AND" else joined | term
    return joined
