"""Charts: what is drawn where, that nobody's name becomes markup, and that nothing is said where nothing was."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from deliveries.metrics.charts import COLOURS, DARK, LIGHT, Chart, Line, figure, nice_top, number_text
from deliveries.metrics.curves import CLASSES

TIMES = [1_795_237_020 + 60 * minute for minute in range(60)]


def svg_of(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])  # type: ignore[index]


def test_a_line_is_broken_where_values_are_missing() -> None:
    """Given a line with a gap and a lone value, when it is drawn, then there is a stretch and a dot."""
    values = [None, *[1.0] * 20, None, 4.0, *[None] * 37]

    svg = svg_of(figure(Chart("Latency", TIMES, [Line("p50", values)], unit="ms")))

    [path] = [one for one in svg if one.tag == "path"]
    assert path.attrib["d"].count(" ") == 20
    assert len([one for one in svg if one.tag == "circle"]) == 1


def test_columns_stand_on_each_other() -> None:
    """Given two counters, when they are stacked, then the second begins where the first ends."""
    lines = [Line("ack", [3.0, *[0.0] * 59]), Line("nack", [1.0, *[0.0] * 59])]

    svg = svg_of(figure(Chart("Requests", TIMES, lines, stacked=True)))

    ack, nack = [one.attrib for one in svg if one.tag == "rect"]
    assert float(nack["y"]) + float(nack["height"]) == pytest.approx(float(ack["y"]))
    assert float(ack["height"]) == pytest.approx(3 * float(nack["height"]))


def test_every_response_class_has_a_colour_of_its_own() -> None:
    """The colours of charts are taken by the place of a class, so there are as many as classes."""
    assert len(CLASSES) <= COLOURS
    for theme in (LIGHT, DARK):
        colours = dict(re.findall(r"--(c\d):(#[0-9a-f]{6});", theme))
        assert len(set(colours.values())) == COLOURS


def test_a_line_of_zeros_is_in_the_legend() -> None:
    html = figure(Chart("Requests", TIMES, [Line("ack", [1.0] * 60), Line("unreachable", [0.0] * 60)]))

    assert html.index("legend") < html.rindex("unreachable")


def test_names_are_text() -> None:
    html = figure(Chart("<b>&", TIMES, [Line('"><script>', [1.0] * 60)], nothing="<i>"))

    assert "<script>" not in html
    assert "<b>" not in html
    svg_of(html)


def test_nothing_is_said_so() -> None:
    assert "<svg" not in figure(Chart("Empty", TIMES, [Line("x", [None] * 60)], nothing="Nothing."))
    assert "Nothing." in figure(Chart("Empty", TIMES, [], nothing="Nothing."))


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.3, 0.4), (1, 1), (1.1, 2), (37, 40), (41, 50), (51, 100), (9e6, 1e7)]
)
def test_the_axis_ends_at_a_readable_number(highest: float, top: float) -> None:
    assert nice_top(highest) == pytest.approx(top)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (7.5, "7.5"), (950, "950"), (1250, "1.25k"), (3.5e7, "35M")])
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_times_are_round_and_few() -> None:
    html = figure(Chart("Day", [TIMES[0] + 1200 * n for n in range(72)], [Line("x", [1.0] * 72)]))

    labels = re.findall(r">(\d\d:\d\d)</text>", html)
    assert labels == ["06:00", "09:00", "12:00", "15:00", "18:00", "21:00", "00:00", "03:00"]
