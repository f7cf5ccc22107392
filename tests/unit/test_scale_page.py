"""docs/scale.md says what was measured, and the costs follow from what five loads cost."""

from __future__ import annotations

import json

import pytest

from bench import capacity, fleetplots, scale, vacuum
from bench.drawing import draw_lines
from pushhub.capacity.model import spent


def test_the_page_has_the_tables_that_follow_from_the_results() -> None:
    page = scale.PAGE.read_text()
    for name, block in scale.blocks().items():
        assert f"{scale.MARK.format(name=name)}\n\n{block}\n\n" in page


def test_the_picture_is_that_of_the_figures() -> None:
    panels = fleetplots.read_panels()
    assert len(panels) > len(fleetplots.SCENARIOS)
    assert fleetplots.PICTURE.read_text() == draw_lines(panels)


def test_the_picture_of_a_steady_load_is_that_of_the_longest_run() -> None:
    assert vacuum.PICTURE.read_text() == vacuum.draw(json.loads(vacuum.RESULTS.read_text()))


def test_costs_are_those_of_which_the_loads_were_made() -> None:
    costs = {"request": 100.0, "message": 5.0, "delivery": 40.0, "published_kb": 3.0, "delivered_kb": 2.0}
    names = [f"{part}_us" for part in capacity.PARTS] + list(capacity.FLOWS)
    measured = {name: dict.fromkeys(names, spent(costs, load) / load.rate) for name, load in capacity.LOADS.items()}
    assert capacity.solve(measured)["push_us"] == pytest.approx(costs, abs=0.002)


def test_a_cost_that_noise_makes_less_than_nothing_is_nothing() -> None:
    names = [f"{part}_us" for part in capacity.PARTS] + list(capacity.FLOWS)
    noise = {"single": 9.0, "wide_large": 8.0}
    measured = {name: dict.fromkeys(names, noise.get(name, 10.0)) for name in capacity.LOADS}
    costs = capacity.solve(measured)["redis_us"]
    assert costs["request"] == costs["delivered_kb"] == 0
    assert costs["message"] == pytest.approx(10, abs=0.1)
