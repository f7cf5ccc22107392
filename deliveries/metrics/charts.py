"""Charts as inline SVG, for the console and the report: no script, no font and no file from anywhere else.

Colours are CSS variables, so that one drawing serves light and dark pages (STYLE).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 24
#: As many lines as there are colours: one for each response class.
COLOURS = 7
MAX_LABELS = 8
_STEPS = (60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400)

#: Hues that colour-blind readers tell apart as well (Okabe and Ito), darker on white and lighter on black.
STYLE = """
.chart { color: var(--chart-ink); width: 100%; max-width: 60em; height: auto; display: block; }
.chart text { font: 11px system-ui, sans-serif; fill: currentColor; }
.chart .grid { stroke: currentColor; stroke-opacity: .18; }
.chart path.line { fill: none; stroke-width: 1.75; stroke-linejoin: round; }
.chart circle.line { stroke: none; }
.charts figure { margin: 0 0 1.5em; }
.charts figcaption { color: var(--chart-ink); font-weight: 600; margin-bottom: .25em; }
.charts .legend { color: var(--chart-ink); font-size: .85em; margin: .25em 0 0 4em; }
.charts .legend span { margin-right: 1.25em; white-space: nowrap; }
.charts .legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; border-radius: 2px; }
.charts .none { color: var(--chart-ink); opacity: .7; padding: 2em 4em; }
""" + "".join(
    f".chart .c{number} {{ fill: var(--c{number}); }} .chart path.c{number} {{ stroke: var(--c{number}); }} "
    f".charts .legend .c{number} {{ background: var(--c{number}); }}\n"
    for number in range(COLOURS)
)
LIGHT = (
    "--chart-ink:#24292f;--c0:#0b7a5b;--c1:#b3261e;--c2:#0062a3;--c3:#a05a00;--c4:#8e3b76;--c5:#5c6670;--c6:#7a5c00;"
)
DARK = "--chart-ink:#e6e6e6;--c0:#3fc79a;--c1:#ff7b72;--c2:#6cb6ff;--c3:#e3b341;--c4:#e29bd0;--c5:#a8b1bb;--c6:#f0e442;"


@dataclass(frozen=True, slots=True)
class Line:
    """Values by time (seconds since 1970); None is a gap."""

    label: str
    values: Sequence[float | None]
    #: Which colour; that of its place unless given.
    colour: int | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over the same times; `stacked` draws columns on top of each other."""

    title: str
    times: Sequence[int]
    lines: Sequence[Line]
    unit: str = ""
    stacked: bool = False
    nothing: str = "No data."


def figure(chart: Chart) -> str:
    """The whole chart with its title and legend, as HTML."""
    caption = escape(f"{chart.title} ({chart.unit})" if chart.unit else chart.title)
    lines = list(chart.lines)[:COLOURS]
    if not any(value is not None for line in lines for value in line.values):
        body = f'<div class="none">{escape(chart.nothing)}</div>'
    else:
        body = _svg(chart, lines, caption) + _legend(lines)
    return f"<figure><figcaption>{caption}</figcaption>{body}</figure>"


def _svg(chart: Chart, lines: Sequence[Line], caption: str) -> str:
    top = nice_top(_highest(chart, lines))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{caption}">',
        *_grid(chart.times, top),
        *(_columns(chart.times, lines, top) if chart.stacked else _curves(chart.times, lines, top)),
        "</svg>",
    ]
    return "".join(parts)


def _highest(chart: Chart, lines: Sequence[Line]) -> float:
    if chart.stacked:
        return max(sum(line.values[place] or 0 for line in lines) for place in range(len(chart.times)))
    return max(value for line in lines for value in line.values if value is not None)


def nice_top(highest: float) -> float:
    """The next of 1, 2, 4, 5 times a power of ten: what four steps divide into readable numbers."""
    if highest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(highest))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= highest)


def number_text(value: float) -> str:
    """A number in four characters or so: 950, 1.2k, 35M."""
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
    for at, text in _time_labels(times):
        parts.append(f'<text x="{_x(at, times)}" y="{HEIGHT - 6}" text-anchor="middle">{text}</text>')
    return parts


def _time_labels(times: Sequence[int]) -> list[tuple[int, str]]:
    """Round times, few enough to be read; days where the chart is longer than two."""
    length = times[-1] - times[0]
    step = next((step for step in _STEPS if length / step <= MAX_LABELS), _STEPS[-1])
    form = "%m-%d" if step >= 86400 else "%m-%d %H:%M" if length > 86400 else "%H:%M"
    first = -(-times[0] // step) * step
    return [(at, datetime.fromtimestamp(at, UTC).strftime(form)) for at in range(first, times[-1] + 1, step)]


def _curves(times: Sequence[int], lines: Sequence[Line], top: float) -> list[str]:
    parts = []
    for number, line in enumerate(lines):
        colour = _colour(line, number)
        title = f"<title>{escape(line.label)}</title>"
        for run in _runs(times, line.values):
            points = [(_x(at, times), _y(value, top)) for at, value in run]
            if len(points) == 1:
                [(x, y)] = points
                parts.append(f'<circle class="line {colour}" cx="{x}" cy="{y}" r="2">{title}</circle>')
            else:
                path = "M" + "L".join(f"{x} {y}" for x, y in points)
                parts.append(f'<path class="line {colour}" d="{path}">{title}</path>')
    return parts


def _runs(times: Sequence[int], values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches without a gap."""
    runs: list[list[tuple[int, float]]] = [[]]
    for at, value in zip(times, values, strict=True):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def _columns(times: Sequence[int], lines: Sequence[Line], top: float) -> list[str]:
    width = max((WIDTH - LEFT - RIGHT) / len(times) * 0.85, 1.0)
    parts = []
    for place in range(len(times)):
        below = 0.0
        for number, line in enumerate(lines):
            value = line.values[place] or 0
            if value:
                y, height = _y(below + value, top), _y(below, top) - _y(below + value, top)
                title = f"<title>{escape(line.label)}: {number_text(value)}</title>"
                box = f'x="{_x(times[place], times)}" y="{y}" width="{width:.1f}" height="{max(height, 0.5):.1f}"'
                parts.append(f'<rect class="{_colour(line, number)}" {box}>{title}</rect>')
                below += value
    return parts


def _legend(lines: Sequence[Line]) -> str:
    items = [
        f'<span><i class="{_colour(line, number)}"></i>{escape(line.label)}</span>'
        for number, line in enumerate(lines)
        if any(value is not None for value in line.values)
    ]
    return f'<div class="legend">{"".join(items)}</div>'


def _colour(line: Line, number: int) -> str:
    """The class of a line's colour. A style attribute would be inline style, which the console's pages refuse."""
    return f"c{number if line.colour is None else line.colour}"


def _x(at: int, times: Sequence[int]) -> float:
    length = times[-1] - times[0] + (times[1] - times[0] if len(times) > 1 else 60)
    return round(LEFT + (WIDTH - LEFT - RIGHT) * (at - times[0]) / length, 1)


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top, 1)
