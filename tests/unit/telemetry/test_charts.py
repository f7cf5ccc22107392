"""Charts: what is drawn where, that no name becomes markup, and that an empty chart says so."""

from __future__ import annotations

import math
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest

from deliveries.telemetry.series.charts import COLOURS, DARK, LIGHT, Chart, Line, figure, nice_top, number_text
from deliveries.telemetry.series.curves import CLASSES

TIMES = [1_795_237_020 + 60 * minute for minute in range(60)]


def svg_of(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])  # type: ignore[index]


def test_a_line_is_broken_where_values_are_missing() -> None:
    """Given a line with a gap and a lone value, when it is drawn, then there is a stretch and a dot."""
    values = [None, *[1.0] * 20, None, 4.0, *[None] * 37]

    svg = svg_of(figure(Chart("Latency", TIMES, [Line("p50", values)], unit="ms")))

    [path] = [element for element in svg if element.tag == "path"]
    assert path.attrib["d"].count(" ") == 20
    assert len([element for element in svg if element.tag == "circle"]) == 1


def test_columns_stand_on_each_other() -> None:
    """Given two counters, when they are stacked, then the second begins where the first ends."""
    lines = [Line("ack", [3.0, *[0.0] * 59]), Line("nack", [1.0, *[0.0] * 59])]

    svg = svg_of(figure(Chart("Requests", TIMES, lines, stacked=True)))

    ack, nack = [element.attrib for element in svg if element.tag == "rect"]
    assert float(nack["y"]) + float(nack["height"]) == pytest.approx(float(ack["y"]))
    assert float(ack["height"]) == pytest.approx(3 * float(nack["height"]))


def test_every_response_class_has_a_colour_of_its_own() -> None:
    """Charts take colours by the position of a class, so there are as many colours as classes."""
    assert len(CLASSES) <= COLOURS
    for theme in (LIGHT, DARK):
        colours = dict(re.findall(r"--(c\d):(#[0-9a-f]{6});", theme))
        assert len(set(colours.values())) == COLOURS


#: Colour matrices of normal vision, and of vision without the receptor of green or of red (Machado et al. 2009).
EYES = (
    ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
)
#: The least distance between two colours of a theme, in hundredths of OKLab's distance.
LEAST_DISTANCE = 12


def light_of(colour: str) -> list[float]:
    """Return the linear red, green and blue of a colour such as #09786a."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(colour: str, page: str) -> float:
    lights = [
        sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), light_of(c), strict=True)) for c in (colour, page)
    ]
    return (max(lights) + 0.05) / (min(lights) + 0.05)


def times_matrix(matrix: tuple[tuple[float, ...], ...], vector: list[float]) -> list[float]:
    return [sum(weight * part for weight, part in zip(row, vector, strict=True)) for row in matrix]


def oklab(colour: str, eye: tuple[tuple[float, ...], ...]) -> list[float]:
    seen = [min(max(part, 0.0), 1.0) for part in times_matrix(eye, light_of(colour))]
    cones = times_matrix(
        ((0.4122, 0.5363, 0.0514), (0.2119, 0.6807, 0.1074), (0.0883, 0.2817, 0.6300)),
        seen,
    )
    roots = [part ** (1 / 3) for part in cones]
    return times_matrix(((0.2105, 0.7936, -0.0041), (1.978, -2.4286, 0.4506), (0.0259, 0.7828, -0.8087)), roots)


@pytest.mark.parametrize(("theme", "page"), [(LIGHT, "#ffffff"), (DARK, "#171d27")])
def test_colours_stand_out_from_the_page_and_from_each_other_for_all_eyes(theme: str, page: str) -> None:
    colours = [colour for name, colour in re.findall(r"--(c\d):(#[0-9a-f]{6});", theme)]
    assert min(contrast(colour, page) for colour in colours) >= 3
    for eye in EYES:
        distances = {
            pair: 100 * math.dist(oklab(pair[0], eye), oklab(pair[1], eye)) for pair in combinations(colours, 2)
        }
        assert {pair: distance for pair, distance in distances.items() if distance < LEAST_DISTANCE} == {}


def test_a_line_of_zeros_is_in_the_legend() -> None:
    html = figure(Chart("Requests", TIMES, [Line("ack", [1.0] * 60), Line("unreachable", [0.0] * 60)]))

    assert html.index("legend") < html.rindex("unreachable")


def test_a_line_without_a_value_is_in_the_legend_and_says_so() -> None:
    html = figure(Chart("Window", TIMES, [Line("outstanding", [1.0] * 60), Line("window", [None] * 60)]))

    assert "</i>window (no data)</span>" in html


def test_each_period_has_a_title_with_its_time_and_all_values() -> None:
    lines = [Line("ack", [1234.0, 0.0, *[None] * 58]), Line("p<50>", [12.345] * 60)]

    slots = [
        slot.findtext("title")
        for slot in svg_of(figure(Chart("All", TIMES, lines, unit="ms"))).iterfind(".//rect[@data-at]")
    ]

    assert len(slots) == 60
    assert slots[:3] == [
        "2026-11-21 04:57:00 UTC\nack: 1,234 ms\np<50>: 12.3 ms",
        "2026-11-21 04:58:00 UTC\nack: 0 ms\np<50>: 12.3 ms",
        "2026-11-21 04:59:00 UTC\nack: no data\np<50>: 12.3 ms",
    ]


def test_the_values_stand_in_a_table_where_no_script_runs() -> None:
    lines = [Line("ack", [1234.0, *[None] * 59]), Line("p<50>", [12.345] * 60)]
    html = figure(Chart("All", TIMES, lines, unit="ms"))
    table = ElementTree.fromstring(re.findall("<noscript>(.+)</noscript>", html)[0])
    rows = [[cell.text or "" for cell in row] for row in table.iterfind(".//tr")]
    assert rows[0] == ["", "ack", "p<50>"] and len(rows) == 61
    assert rows[1:3] == [
        ["2026-11-21 04:57:00 UTC", "1,234 ms", "12.3 ms"],
        ["2026-11-21 04:58:00 UTC", "no data", "12.3 ms"],
    ]


def test_unknown_stretches_are_shaded_and_zeros_are_not() -> None:
    """Given two stretches of unknown minutes, when they are drawn, then each shade is as wide as its stretch."""
    unknown = [True] * 2 + [False] * 55 + [True] * 3
    values = [None if is_unknown else 0.0 for is_unknown in unknown]

    html = figure(Chart("Requests", TIMES, [Line("ack", values)], stacked=True, unknown=unknown))

    widths = [float(shade.attrib["width"]) for shade in svg_of(html).iterfind(".//g[@class='gaps']/rect")]
    assert widths == pytest.approx([656 / 60 * 2, 656 / 60 * 3], abs=0.1)
    assert '<i class="gap"></i>no data' in html
    assert "gap" not in figure(Chart("Requests", TIMES, [Line("ack", [0.0] * 60)], stacked=True))


def test_the_week_before_is_dashed_and_in_the_legend() -> None:
    lines, before = [Line("ack", [1.0] * 60)], [Line("ack, a week before", [8.0] * 60, 0)]

    html = figure(Chart("Requests", TIMES, lines, stacked=True, before=before))

    assert html.count('class="line before c0"') == 1
    assert '<i class="before c0"></i>ack, a week before' in html
    assert "ack: 1\nack, a week before: 8" in html


def test_names_are_text() -> None:
    html = figure(Chart("<b>&", TIMES, [Line('"><script>', [1.0] * 60)], nothing="<i>"))

    assert "<script>" not in html
    assert "<b>" not in html
    svg_of(html)


def test_a_chart_without_values_says_so() -> None:
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


@pytest.mark.parametrize("step, count", [(60, 61), (7200, 25)])
def test_no_label_of_a_time_is_cut_off(step: int, count: int) -> None:
    """Given a chart whose last period begins at a round time, then that time's label ends within the picture."""
    times = [1_795_305_600 + number * step for number in range(count)]
    line = Line("p50", [1.0] * len(times), 0)
    svg = svg_of(figure(Chart(title="Latency", times=times, lines=[line])))
    labels = [text for text in svg.iter() if text.get("text-anchor") == "middle"]
    assert len(labels) > 3
    for label in labels:
        assert float(label.get("x", "")) + len(label.text or "") * 3.5 <= 720
