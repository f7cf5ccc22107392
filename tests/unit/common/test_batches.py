"""Batches of a bounded number of items and a bounded size."""

from __future__ import annotations

from pushhub.common.batches import gather


def test_a_batch_ends_before_it_would_have_too_many_items_or_be_too_large() -> None:
    sizes = [3, 3, 3, 1, 1, 1, 1, 9, 1]
    batches = list(gather(sizes, most=3, size_of=lambda size: size, size=6))
    assert batches == [[3, 3], [3, 1, 1], [1, 1], [9], [1]]


def test_no_items_make_no_batch() -> None:
    assert list(gather([], most=3, size_of=len, size=6)) == []
