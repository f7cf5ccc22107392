"""The table that compares the figures of two commits."""

from __future__ import annotations

from bench.compare import compare_figures


def test_medians_stand_side_by_side_and_what_was_not_measured_is_a_dash() -> None:
    old = {"per_second": [90.0, 100.0, 900.0], "lost": [0.0]}
    new = {"per_second": [250.0, 150.0], "lost": [3.0], "cpu_us": [12.5]}
    assert compare_figures(old, new, commit="85cde97").splitlines()[2:] == [
        "| cpu_us | - | 12.5 | - |",
        "| lost | 0 | 3 | - |",
        "| per_second | 100 | 200 | 2.00 |",
    ]
