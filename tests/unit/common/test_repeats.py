"""A line that repeats is logged once a minute, with how often it came."""

from __future__ import annotations

import pytest

from pushhub.common import repeats
from pushhub.common.repeats import Repeats


def test_a_repeating_line_comes_once_a_minute_with_its_count() -> None:
    now = 0.0
    lines = Repeats(monotonic=lambda: now)
    counts = []
    for second in range(0, 126, 5):
        now = float(second)
        counts.append(lines.count("denied"))
    assert {second * 5: count for second, count in enumerate(counts) if count} == {0: 1, 60: 12, 120: 12}
    assert lines.count("another") == 1


def test_only_so_many_lines_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MAX_LINES", 2)
    lines = Repeats(monotonic=lambda: 0.0)
    assert [lines.count(key) for key in (1, 2, 3, 3, 1)] == [1, 1, 1, 0, 1]
