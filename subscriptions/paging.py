"""Lists in pages. A page token holds the last name of a page, so that a list may change while it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Model, Q, QuerySet

from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.pagetokens import read_token, write_token

Row = TypeVar("Row", bound=Model)


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


def paged(rows: QuerySet[Row], page: Page, *, keys: tuple[str, ...], scope: str) -> tuple[list[Row], str]:
    """Return a page of `rows` in the order of `keys`, and the token of the next page.

    `scope` names the list. A token of one list is refused by another.
    """
    if page.token:
        rows = rows.filter(_after(keys, read_token(page.token, scope)))
    page_rows = list(rows.order_by(*keys)[: page.size + 1])
    if len(page_rows) <= page.size:
        return page_rows, ""
    page_rows.pop()
    return page_rows, write_token([_value(page_rows[-1], key) for key in keys], scope)


def _after(keys: tuple[str, ...], last: list[str]) -> Q:
    """Return the condition (a, b) > (x, y)."""
    after = Q()
    equal = Q()
    for key, value in zip(keys, last, strict=True):
        after |= equal & Q(**{f"{key}__gt": value})
        equal &= Q(**{key: value})
    return after


def _value(row: object, key: str) -> str:
    for part in key.split("__"):
        row = getattr(row, part)
    return str(row)
