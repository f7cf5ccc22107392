"""Batches of a bounded number of items, which together have a bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def gather(items: Iterable[T], *, most: int, size_of: Callable[[T], int], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of up to `most`, whose sizes add up to at most `size`; a larger item is alone."""
    batch: list[T] = []
    total = 0
    for item in items:
        added = size_of(item)
        if batch and (len(batch) == most or total + added > size):
            yield batch
            batch, total = [], 0
        batch.append(item)
        total += added
    if batch:
        yield batch
