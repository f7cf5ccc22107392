"""A row of the bench whose figures show that nothing was measured fails, and so does one that misses a gate."""

from __future__ import annotations

from typing import Any

import pytest

from bench.processes import BenchError
from bench.rows import Row

ROW = Row(
    "module", "function", "what", ("rate", "idle"), may_be_nothing=("idle",), least={"rate": 0.8}, most={"idle": 3.0}
)


@pytest.mark.parametrize("figures", [{"idle": 0}, {"rate": 0, "idle": 1}, {"rate": -1, "idle": 1}, {"rate": None}])
def test_figures_that_are_missing_or_nothing_are_no_measurement(figures: dict[str, Any]) -> None:
    with pytest.raises(BenchError, match="rate is .*, so nothing was measured"):
        ROW.check(figures)


@pytest.mark.parametrize("idle", [0, -0.1, 2.5])
def test_some_figures_may_be_nothing(idle: float) -> None:
    ROW.check({"rate": 1, "idle": idle})


def test_each_gate_that_is_missed_is_named() -> None:
    assert ROW.missed({"rate": 0.8, "idle": 3.0}) == []
    assert ROW.missed({"rate": 0.79, "idle": 3.01}) == [
        "rate is 0.79, and should be at least 0.8",
        "idle is 3.01, and should be at most 3.0",
    ]
