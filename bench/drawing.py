"""Draws small SVGs: histories of lanes, push window and rate over time on a logarithmic scale, and bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from bench.lane import Sample

COLUMNS = 2
WIDTH, HEIGHT, MARGIN, HEAD = 420, 120, 40, 44
#: The scale goes from here to the largest window.
LOWEST, HIGHEST = 0.01, 30_000.0
LINES = (0.1, 1, 10, 100, 1000, 10_000)
WINDOW, RATE = "#1f6feb", "#2da44e"


@dataclass(frozen=True, slots=True)
class Panel:
    """One scenario: its title, its figures, and its samples."""

    title: str
    figures: str
    seconds: float
    samples: Sequence[Sample]


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
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * (WIDTH + 2 * MARGIN), rows * (HEIGHT + HEAD + MARGIN) + MARGIN
    parts = [
        *_head(width, height),
        f'<text x="{MARGIN}" y="20"><tspan fill="{WINDOW}">push window</tspan>, '
        f'<tspan fill="{RATE}">deliveries a second</tspan>; seconds from left to right</text>',
    ]
    for number, panel in enumerate(panels):
        x = number % COLUMNS * (WIDTH + 2 * MARGIN) + MARGIN
        y = number // COLUMNS * (HEIGHT + HEAD + MARGIN) + MARGIN + HEAD
        parts += _panel(panel, x, y)
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, x: float, y: float) -> list[str]:
    parts = [
        f'<g transform="translate({x} {y})">',
        f'<text y="-24" font-weight="bold">{escape(panel.title)}</text>',
        f'<text y="-9">{escape(panel.figures)}</text>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
    ]
    for value in LINES:
        at = _height(value)
        parts.append(
            f'<path d="M0 {at}H{WIDTH}" stroke="#ddd"/><text x="-4" y="{at + 4:.0f}" text-anchor="end">{value:g}</text>'
        )
    for part in range(5):
        seconds = panel.seconds * part / 4
        parts.append(f'<text x="{WIDTH * part / 4}" y="{HEIGHT + 14}" text-anchor="middle">{seconds:g}</text>')
    samples = panel.samples
    window = [(sample.now_ms, sample.window) for sample in samples]
    rate = [
        (end.now_ms, (end.sent - start.sent) * 1000 / (end.now_ms - start.now_ms)) for start, end in pairwise(samples)
    ]
    parts += [_line(window, panel.seconds, WINDOW), _line(rate, panel.seconds, RATE), "</g>"]
    return parts


def _line(points: Iterable[tuple[float, float]], seconds: float, colour: str) -> str:
    text = " ".join(f"{now_ms / seconds / 1000 * WIDTH:.0f},{_height(value)}" for now_ms, value in points)
    return f'<polyline points="{text}" fill="none" stroke="{colour}"/>'


def _height(value: float) -> float:
    """Return the distance of a value from the top of the drawing."""
    within = min(max(value, LOWEST), HIGHEST)
    return round(HEIGHT * (1 - math.log(within / LOWEST) / math.log(HIGHEST / LOWEST)), 1)
