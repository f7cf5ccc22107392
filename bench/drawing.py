"""Draws small SVGs: lines on a logarithmic scale, such as push window and rate of a lane over time, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from bench.lane import Sample

COLUMNS = 2
WIDTH, HEIGHT, MARGIN, HEAD = 420, 120, 40, 44
#: The scale of lanes goes from here to the largest window.
LOWEST, HIGHEST = 0.01, 30_000.0
WINDOW, RATE = "#1f6feb", "#2da44e"
#: The colours of a panel's lines, in their order.
COLOURS = (WINDOW, RATE, "#cf222e", "#8250df")
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One scenario: its title, its figures, and its samples."""

    title: str
    figures: str
    seconds: float
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel with named lines; x is a share of the width, and y logarithmic, from `lowest` to `highest`.

    The labels below stand at equal distances from the left end to the right one.
    """

    title: str
    figures: str
    lines: Mapping[str, Points]
    labels: Sequence[str]
    lowest: float
    highest: float

    def y(self, value: float) -> float:
        """Return the distance of a value from the top of the drawing."""
        within = min(max(value, self.lowest), self.highest)
        return round(HEIGHT * (1 - math.log(within / self.lowest) / math.log(self.highest / self.lowest)), 1)

    def grid(self) -> list[float]:
        """Return the powers of ten between the ends of the scale."""
        first, last = math.floor(math.log10(self.lowest)) + 1, math.ceil(math.log10(self.highest))
        return [10.0**power for power in range(first, last)]


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel with a bar for each value, under its name."""

    title: str
    values: Mapping[str, float]


#: The height of a bar with the gap to the next, and the widths of its name and of its value.
BAR, NAME_WIDTH, VALUE_WIDTH = 18, 150, 60


def draw_bars(panels: Sequence[Bars]) -> str:
    """Return panels of bars; the first bar of each is in another colour."""
    panel_height = max(len(panel.values) for panel in panels) * BAR + MARGIN
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * (WIDTH + 2 * MARGIN), rows * panel_height + MARGIN
    parts = _head(width, height)
    for number, panel in enumerate(panels):
        x = number % COLUMNS * (WIDTH + 2 * MARGIN) + MARGIN
        y = number // COLUMNS * panel_height + MARGIN
        parts += _bars(panel, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _bars(panel: Bars, x: float, y: float) -> list[str]:
    parts = [f'<g transform="translate({x} {y})">', f'<text y="-9" font-weight="bold">{escape(panel.title)}</text>']
    scale = (WIDTH - NAME_WIDTH - VALUE_WIDTH) / max(panel.values.values())
    for number, (name, value) in enumerate(panel.values.items()):
        top, length, colour = number * BAR, round(value * scale, 1), RATE if number else WINDOW
        parts += [
            f'<text x="{NAME_WIDTH - 6}" y="{top + 11}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{NAME_WIDTH}" y="{top}" width="{length}" height="{BAR - 4}" fill="{colour}"/>',
            f'<text x="{NAME_WIDTH + length + 4}" y="{top + 11}">{value:,{".0f" if value >= 100 else "g"}}</text>',
        ]
    return [*parts, "</g>"]


def _head(width: float, height: float) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]


def draw(panels: Sequence[Panel]) -> str:
    """Return the histories of lanes."""
    legend = (
        f'<tspan fill="{WINDOW}">push window</tspan>, '
        f'<tspan fill="{RATE}">deliveries a second</tspan>; seconds from left to right'
    )
    return _draw([_lines_of(panel) for panel in panels], legend)


def draw_lines(panels: Sequence[Lines]) -> str:
    """Return panels of lines, whose names stand below each."""
    return _draw(panels, "")


def _draw(panels: Sequence[Lines], legend: str) -> str:
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * (WIDTH + 2 * MARGIN), rows * (HEIGHT + HEAD + MARGIN) + MARGIN
    parts = _head(width, height)
    if legend:
        parts.append(f'<text x="{MARGIN}" y="20">{legend}</text>')
    for number, panel in enumerate(panels):
        x = number % COLUMNS * (WIDTH + 2 * MARGIN) + MARGIN
        y = number // COLUMNS * (HEIGHT + HEAD + MARGIN) + MARGIN + HEAD
        parts += _panel(panel, x, y, has_names=not legend)
    return "\n".join([*parts, "</svg>\n"])


def _lines_of(panel: Panel) -> Lines:
    samples = panel.samples
    window = [(sample.now_ms / panel.seconds / 1000, sample.window) for sample in samples]
    rate = [
        (end.now_ms / panel.seconds / 1000, (end.sent - start.sent) * 1000 / (end.now_ms - start.now_ms))
        for start, end in pairwise(samples)
    ]
    labels = [f"{panel.seconds * part / 4:g}" for part in range(5)]
    return Lines(panel.title, panel.figures, {"window": window, "rate": rate}, labels, LOWEST, HIGHEST)


def _panel(panel: Lines, x: float, y: float, *, has_names: bool) -> list[str]:
    parts = [
        f'<g transform="translate({x} {y})">',
        f'<text y="-24" font-weight="bold">{escape(panel.title)}</text>',
        f'<text y="-9">{escape(panel.figures)}</text>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for value in panel.grid():
        at, text = panel.y(value), _number(value)
        parts.append(
            f'<path d="M0 {at}H{WIDTH}" stroke="#ddd"/><text x="-4" y="{at + 4:.0f}" text-anchor="end">{text}</text>'
        )
    for number, label in enumerate(panel.labels):
        at = WIDTH * number / (len(panel.labels) - 1)
        parts.append(f'<text x="{at}" y="{HEIGHT + 14}" text-anchor="middle">{escape(label)}</text>')
    for colour, points in zip(COLOURS, panel.lines.values(), strict=False):
        text = " ".join(f"{share * WIDTH:.0f},{panel.y(value)}" for share, value in points)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}"/>')
    if has_names:
        names = [
            f'<tspan fill="{colour}">{escape(name)}</tspan>' for colour, name in zip(COLOURS, panel.lines, strict=False)
        ]
        parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 30}" text-anchor="middle">{", ".join(names)}</text>')
    return [*parts, "</g>"]


def _number(value: float) -> str:
    return f"{value:g}" if value < 100_000 else f"{value / 1000:g}k" if value < 1e6 else f"{value / 1e6:g}M"
