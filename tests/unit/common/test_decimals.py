"""Numbers in texts that anybody may send."""

from __future__ import annotations

import pytest

from pushhub.common.decimals import read_decimal


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("7", 7), ("1000", 1000)])
def test_a_number_up_to_the_most_is_read(text: str, number: int) -> None:
    assert read_decimal(text, most=1000) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "1001", " 7", "²", "00007", "9" * 5000, "٣"])
def test_any_other_text_is_no_number(text: str) -> None:
    assert read_decimal(text, most=1000) is None
