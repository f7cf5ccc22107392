"""Lists in pages. A page token holds the last name of a page, so that a list may change while it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet, TextField
from django.db.models.functions import Cast, Length

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.pagetokens import read_token, write_token

Row = TypeVar("Row", bound=Model)

#: Of a page's rows. A topic or a subscription may have 100 KB of functions.
LARGE_CHARACTERS = 4 << 20


@dataclass(frozen=True, slots=True)
class Page:
    """The page that a caller asks for. A size of 0 stands for the default; one above the cap gets the cap."""

    size: int
    token: str

    @classmethod
    def read(cls, query: Mapping[str, str], *, default: int = 1000, cap: int = 1000) -> Page:
        text = query.get("pageSize") or query.get("page_size") or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InvalidArgument(
                f"You have passed an invalid argument to the service (argument=page_size): {clipped(text)}.",
                field="pageSize",
            )
        return cls(size=min(int(text) or default, cap), token=query.get("pageToken") or query.get("page_token") or "")


def paged(
    rows: QuerySet[Row], page: Page, *, keys: tuple[str, ...], scope: str, large: str = ""
) -> tuple[list[Row], str]:
    """Return a page of `rows` in the order of `keys`, and the token of the next page.

    `scope` names the list. A token of one list is refused by another. `large` names a column of JSON: a page that has
    LARGE_CHARACTERS of it ends early, because a page of a thousand could have a hundred times as many.
    """
    if page.token:
        rows = rows.filter(_after(keys, read_token(page.token, scope)))
    selected: QuerySet[Any] = rows.order_by(*keys)
    if large:
        selected = selected.defer(large).annotate(large_characters=Length(Cast(large, TextField())))
    found = list(selected[: page.size + 1])
    page_rows = found[: page.size]
    if large:
        page_rows = page_rows[: _fitting(page_rows)]
        _complete(page_rows, large)
    if len(page_rows) == len(found):
        return page_rows, ""
    last = (attrgetter(key.replace("__", "."))(page_rows[-1]) for key in keys)
    return page_rows, write_token([str(value) for value in last], scope)


def _fitting(rows: Sequence[Any]) -> int:
    """Return how many rows fit into a page, at least one."""
    sums = accumulate(row.large_characters or 0 for row in rows)
    return max(len([total for total in sums if total <= LARGE_CHARACTERS]), 1)


def _complete(rows: Sequence[Any], large: str) -> None:
    """Read the column that was left out, for the rows that have it."""
    wanted = [row.pk for row in rows if row.large_characters is not None]
    values = dict(type(rows[0])._default_manager.filter(pk__in=wanted).values_list("pk", large)) if wanted else {}
    for row in rows:
        setattr(row, large, values.get(row.pk))


def _after(keys: tuple[str, ...], last: list[str]) -> Q:
    """Return the condition (a, b) > (x, y)."""
    after = Q()
    equal = Q()
    for key, value in zip(keys, last, strict=True):
        after |= equal & Q(**{f"{key}__gt": value})
        equal &= Q(**{key: value})
    return after
