"""Filters of a replay as Spark's columns: the subscription filter's grammar, ordering keys, and paths into JSON data.

    attributes.kind = "order" AND NOT hasPrefix(json.customer.name, "test") AND orderingKey != "1"

A user's filter becomes columns and values, never SQL, because SQL in Spark could run anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import and_, or_
from typing import TYPE_CHECKING

from pushhub.common.errors import InvalidArgument
from subscriptions.resources.filters import read_filter

if TYPE_CHECKING:
    from pyspark.sql import Column

    Make = Callable[[], Column]

MAX_FILTER_CHARACTERS = 1000
#: Only such keys are passed on, because Spark has a path language of its own.
JSON_KEY = re.compile(r"[A-Za-z0-9_ -]{1,100}", re.ASCII)


def filter_column(text: str) -> Column:
    """Return whether a message passes, as a column. Raises InvalidArgument, which names the bad character."""
    from pyspark.sql import functions as f

    make = check_filter(text)
    return make() if make is not None else f.lit(True)


def check_filter(text: str) -> Make | None:
    """Return what makes the column of a filter, None for an empty one. Raises InvalidArgument, without Spark."""
    if len(text) > MAX_FILTER_CHARACTERS:
        raise InvalidArgument(
            f"The filter has {len(text)} characters; {MAX_FILTER_CHARACTERS} are the most.", field="filter"
        )
    return read_filter(text, Columns()) if text.strip() else None


class Columns:
    """Turns the parts of a filter into functions, each of which makes a column that is never null."""

    #: The words that paths begin with, and whether a path may have several keys; an ordering key has none.
    roots: Mapping[str, bool | None] = {"attributes": False, "json": True, "orderingKey": None}

    def has(self, root: str, path: Sequence[str]) -> Make:
        return _test(root, path, lambda value: value.isNotNull())

    def equal(self, root: str, path: Sequence[str], value: str) -> Make:
        return _test(root, path, lambda own: own == value)

    def starts(self, root: str, path: Sequence[str], start: str) -> Make:
        return _test(root, path, lambda value: value.startswith(start))

    def negate(self, term: Make) -> Make:
        return lambda: ~term()

    def every(self, terms: Sequence[Make]) -> Make:
        return lambda: reduce(and_, [term() for term in terms])

    def some(self, terms: Sequence[Make]) -> Make:
        return lambda: reduce(or_, [term() for term in terms])


def _test(root: str, path: Sequence[str], test: Callable[[Column], Column]) -> Make:
    """Return what tests the value of a path, where a missing value fails."""
    for key in path if root == "json" else ():
        if not JSON_KEY.fullmatch(key):
            raise InvalidArgument(f"A key of JSON data cannot be {key!r} in a filter.", field="filter")

    def make() -> Column:
        from pyspark.sql import functions as f

        return f.coalesce(test(_value(root, path)), f.lit(False))

    return make


def _value(root: str, path: Sequence[str]) -> Column:
    from pyspark.sql import functions as f

    if root == "orderingKey":
        return f.coalesce("ordering_key", f.lit(""))
    if root == "attributes":
        return f.try_element_at("attributes", f.lit(path[0]))
    return f.get_json_object(f.col("data").cast("string"), "$" + "".join(f"['{key}']" for key in path))
