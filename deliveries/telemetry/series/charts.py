"""Charts as inline SVG, for the console and the report. They load no fonts and no other files.

Colours are CSS variables, so that the same drawing fits light and dark pages (charts.css). Each period has a title
with its time and all its values, which browsers show and the console's script (static/deliveries/charts.js) reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import groupby

from pushhub.common.clock import time_text

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 24
#: The number of colours and so of lines: one per response class.
COLOURS = 7
MAX_LABELS = 8
#: The width of a label's character.
CHARACTER = 7
_STEPS = (60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400)

#: Each colour has a contrast of 3 to 1 with its page, and colour-blind readers can tell any two apart (test_charts.py).
LIGHT = (
    "--chart-ink:#24292f;--c0:#09786a;--c1:#d01514;--c2:#0050e7;--c3:#e47300;--c4:#5e2b92;--c5:#213641;--c6:#b578b7;"
)
DARK = "--chart-ink:#e6e6e6;--c0:#00d595;--c1:#e5533f;--c2:#5bbeff;--c3:#fff222;--c4:#865bff;--c5:#7584a7;--c6:#fffaec;"


@dataclass(frozen=True, slots=True)
class Line:
    """Values by time (seconds since 1970); None is a gap."""

    label: str
    values: Sequence[float | None]
    #: The number of the colour; by default the place of the line.
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times. With `stacked` they are drawn as columns on top of each other."""

    title: str
    times: Sequence[int]
    lines: Sequence[Line]
    unit: str = ""
    stacked: bool = False
    #: The text of an empty chart.
    nothing: str = "No data."
    #: The values of an earlier time, drawn as dashed lines.
    before: Sequence[Line] = ()
    #: For each time, whether its values are unknown. An empty sequence means that all are known.
    unknown: Sequence[bool] = ()
    #: The text for a value that is None, in the reader's language.
    no_data: str = "no data"


def figure(chart: Chart) -> str:
    """Return the whole chart with its title and legend, as HTML."""
    caption = escape(f"{chart.title} ({chart.unit})" if chart.unit else chart.title)
    lines = list(chart.lines)[:COLOURS]
    before = list(chart.before)[:COLOURS]
    if not any(value is not None for line in [*lines, *before] for value in line.values):
        return f'<figure><figcaption>{caption}</figcaption><div class="none">{escape(chart.nothing)}</div></figure>'
    plot = f'<div class="plot" data-step="{_step(chart.times)}">{_svg(chart, lines, before, caption)}</div>'
    table = f"<noscript>{_table(chart, [*lines, *before])}</noscript>"
    return f"<figure><figcaption>{caption}</figcaption>{plot}{_legend(chart, lines, before)}{table}</figure>"


def sparkline(values: Sequence[float]) -> str:
    """Return a small curve without axes, as HTML, to stand below its last value; empty if nothing but zeros."""
    if not any(values):
        return ""
    top = max(values)
    points = " ".join(f"{place},{20 - 18 * value / top:.1f}" for place, value in enumerate(values))
    size = f'viewBox="0 0 {len(values) - 1} 21" preserveAspectRatio="none"'
    return f'<svg class="sparkline" {size} aria-hidden="true"><polyline points="{points}"/></svg>'


def _svg(chart: Chart, lines: Sequence[Line], before: Sequence[Line], caption: str) -> str:
    top = nice_top(max(_highest(lines, stacked=chart.stacked), _highest(before, stacked=False)))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{caption}">',
        *_gaps(chart),
        *_grid(chart.times, top),
        *(_columns(chart.times, lines, top) if chart.stacked else _curves(chart.times, lines, top)),
        *_curves(chart.times, before, top, kind="line before"),
        *_slots(chart, [*lines, *before]),
        "</svg>",
    ]
    return "".join(parts)


def _highest(lines: Sequence[Line], *, stacked: bool) -> float:
    if stacked and lines:
        return max(sum(line.values[place] or 0 for line in lines) for place in range(len(lines[0].values)))
    return max((value for line in lines for value in line.values if value is not None), default=0.0)


def _gaps(chart: Chart) -> Iterator[str]:
    """Yield a grey area over each time without known values, so that it doesn't look like zero."""
    if not any(chart.unknown):
        return
    yield '<g class="gaps">'
    places = range(len(chart.times))
    for is_unknown, stretch in groupby(places, key=lambda place: chart.unknown[place]):
        if is_unknown:
            times = [chart.times[place] for place in stretch]
            width = f'width="{_width(chart.times) * len(times):.1f}"'
            yield f'<rect x="{_x(times[0], chart.times)}" y="{TOP}" {width} height="{HEIGHT - TOP - BOTTOM}"/>'
    yield "</g>"


def _slots(chart: Chart, lines: Sequence[Line]) -> Iterator[str]:
    """Yield an invisible column per period, which has the period's values as its title."""
    yield '<g class="slots">'
    width = f'width="{_width(chart.times):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
    for place, at in enumerate(chart.times):
        values = [f"{line.label}: {_value_text(line.values[place], chart)}" for line in lines]
        title = escape("\n".join([time_text(datetime.fromtimestamp(at, UTC)), *values]))
        yield f'<rect x="{_x(at, chart.times)}" y="{TOP}" {width} data-at="{at}"><title>{title}</title></rect>'
    yield "</g>"


def _table(chart: Chart, lines: Sequence[Line]) -> str:
    """Return the values as a table, which stands below the chart where no script reads them out."""
    heads = "".join(f'<th scope="col">{escape(line.label)}</th>' for line in lines)
    rows = (
        f'<tr><th scope="row">{time_text(datetime.fromtimestamp(at, UTC))}</th>'
        + "".join(f"<td>{escape(_value_text(line.values[place], chart))}</td>" for line in lines)
        + "</tr>"
        for place, at in enumerate(chart.times)
    )
    head = f"<thead><tr><td></td>{heads}</tr></thead>"
    return f'<div class="table-frame"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'


def _value_text(value: float | None, chart: Chart) -> str:
    if value is None:
        return chart.no_data
    text = f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
    return f"{text} {chart.unit}" if chart.unit else text


def nice_top(highest: float) -> float:
    """Return the next of 1, 2, 4 or 5 times a power of ten, which four grid lines divide into readable numbers."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= highest)


def number_text(value: float) -> str:
    """Return a number in about four characters: 950, 1.2k, 35M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _grid(times: Sequence[int], top: float) -> list[str]:
    parts = []
    for step in range(5):
        y = _y(top * step / 4, top)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{number_text(top * step / 4)}</text>')
    for number, (at, text) in enumerate(_time_labels(times)):
        second = ' class="second"' if number % 2 else ""
        x = min(_x(at, times), WIDTH - len(text) * CHARACTER / 2)  # the last one is not cut off
        parts.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="middle"{second}>{text}</text>')
    return parts


def _time_labels(times: Sequence[int]) -> list[tuple[int, str]]:
    """Return round times, at most MAX_LABELS, each with its label."""
    length = times[-1] - times[0]
    step = next((step for step in _STEPS if length / step <= MAX_LABELS), _STEPS[-1])
    form = "%m-%d" if step >= 86400 else "%m-%d %H:%M" if length > 86400 else "%H:%M"
    first = -(-times[0] // step) * step
    return [(at, datetime.fromtimestamp(at, UTC).strftime(form)) for at in range(first, times[-1] + 1, step)]


def _curves(times: Sequence[int], lines: Sequence[Line], top: float, *, kind: str = "line") -> list[str]:
    parts = []
    for number, line in enumerate(lines):
        drawn = f"{kind} {_colour(line, number)}"
        for run in _runs(times, line.values):
            points = [(_x(at, times), _y(value, top)) for at, value in run]
            if len(points) == 1:
                [(x, y)] = points
                parts.append(f'<circle class="{drawn}" cx="{x}" cy="{y}" r="2"/>')
            else:
                path = "M" + "L".join(f"{x} {y}" for x, y in points)
                parts.append(f'<path class="{drawn}" d="{path}"/>')
    return parts


def _runs(times: Sequence[int], values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """Return the runs of values without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in zip(times, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _columns(times: Sequence[int], lines: Sequence[Line], top: float) -> list[str]:
    width = max(_width(times) * 0.85, 1.0)
    parts = []
    for place in range(len(times)):
        below = 0.0
        for number, line in enumerate(lines):
            value = line.values[place] or 0
            if value:
                y, height = _y(below + value, top), _y(below, top) - _y(below + value, top)
                box = f'x="{_x(times[place], times)}" y="{y}" width="{width:.1f}" height="{max(height, 0.5):.1f}"'
                parts.append(f'<rect class="{_colour(line, number)}" {box}/>')
                below += value
    return parts


def _legend(chart: Chart, lines: Sequence[Line], before: Sequence[Line]) -> str:
    """Return every line's colour and name, even if the line has no values."""
    items = [_legend_item(chart, line, _colour(line, number)) for number, line in enumerate(lines)]
    items += [_legend_item(chart, line, f"before {_colour(line, number)}") for number, line in enumerate(before)]
    if any(chart.unknown):
        items.append(f'<span><i class="gap"></i>{escape(chart.no_data)}</span>')
    return f'<div class="legend">{"".join(items)}</div>'


def _legend_item(chart: Chart, line: Line, colour: str) -> str:
    is_empty = all(value is None for value in line.values)
    label = f"{line.label} ({chart.no_data})" if is_empty else line.label
    return f'<span><i class="{colour}"></i>{escape(label)}</span>'


def _colour(line: Line, number: int) -> str:
    """Return the CSS class of a line's colour. The console's pages don't allow style attributes."""
    return f"c{number if line.colour is None else line.colour}"


def _step(times: Sequence[int]) -> int:
    """Return the seconds of a period."""
    return times[1] - times[0] if len(times) > 1 else 60


def _width(times: Sequence[int]) -> float:
    """Return the width of a period in the drawing."""
    return (WIDTH - LEFT - RIGHT) / len(times)


def _x(at: int, times: Sequence[int]) -> float:
    length = times[-1] - times[0] + _step(times)
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (at - times[0]) / length, 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)
