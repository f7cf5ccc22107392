"""Draws a storm as one SVG: messages and waiting deliveries over time with the faults, and what the processes take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise

from tests.chaos.ledger import Ledger
from tests.chaos.samples import Sample

WIDTH, HEIGHT, MARGIN, HEAD = 900, 130, 60, 40
COLOURS = ("#1f6feb", "#2da44e", "#cf222e", "#8250df", "#bf8700", "#57606a", "#0550ae", "#953800")
Line = tuple[str, list[tuple[float, float]]]


def draw(title: str, ledger: Ledger, samples: Sequence[Sample]) -> str:
    panels = [
        (
            "messages a second",
            [("published", _rate(samples, lambda it: it.published)), ("deliveries", _rates(samples))],
        ),
        ("deliveries that wait", [("waiting", [(it.at, it.waiting) for it in samples if it.waiting >= 0])]),
        ("memory in MB", _by_name(samples, lambda it: it.megabytes)),
        ("open descriptors", _by_name(samples, lambda it: it.descriptors)),
    ]
    began, ends = samples[0].at, samples[-1].at
    height = len(panels) * (HEIGHT + HEAD) + 2 * MARGIN
    width = WIDTH + 2 * MARGIN + 120
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{MARGIN}" y="20" font-weight="bold">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="36">grey: a fault is being done; seconds from left to right</text>',
    ]
    for number, (name, lines) in enumerate(panels):
        top = MARGIN + HEAD / 2 + number * (HEIGHT + HEAD)
        parts.append(f'<g transform="translate({MARGIN} {top})"><text y="-6" font-weight="bold">{name}</text>')
        parts += _faults(ledger, began, ends)
        parts += _lines(lines, began, ends)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return _rate(samples, lambda it: it.deliveries)


def _rate(samples: Sequence[Sample], of: Callable[[Sample], int]) -> list[tuple[float, float]]:
    return [(after.at, (of(after) - of(before)) / (after.at - before.at)) for before, after in pairwise(samples)]


def _by_name(samples: Sequence[Sample], of: Callable[[Sample], dict[str, float]]) -> list[Line]:
    """Return a line for each role, which is that of its largest process: the others are much like it."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        largest: dict[str, float] = {}
        for name, value in of(sample).items():
            role = name.partition("-")[0]
            largest[role] = max(value, largest.get(role, 0.0))
        for role, value in largest.items():
            lines[role].append((sample.at, value))
    return sorted(lines.items())


def _faults(ledger: Ledger, began: float, ends: float) -> list[str]:
    seconds = ends - began
    parts = []
    for incident in ledger.incidents:
        x = (incident.began - began) / seconds * WIDTH
        wide = max((incident.ended - incident.began) / seconds * WIDTH, 1)
        name = escape(f"{incident.fault} {incident.target} at {incident.began - began:.0f} s")
        parts.append(
            f'<rect x="{x:.1f}" width="{wide:.1f}" height="{HEIGHT}" fill="#d0d7de"><title>{name}</title></rect>'
        )
    return parts


def _lines(lines: Sequence[Line], began: float, ends: float) -> list[str]:
    largest = max((value for _, points in lines for _, value in points), default=1) or 1
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for part in range(5):
        y, x = HEIGHT * (1 - part / 4), WIDTH * part / 4
        parts.append(f'<text x="-4" y="{y + 4:.0f}" text-anchor="end">{largest * part / 4:.0f}</text>')
        parts.append(f'<text x="{x}" y="{HEIGHT + 12}" text-anchor="middle">{(ends - began) * part / 4:.0f}</text>')
    for number, (name, points) in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        text = " ".join(
            f"{(at - began) / (ends - began) * WIDTH:.1f},{HEIGHT * (1 - value / largest):.1f}" for at, value in points
        )
        parts.append(f'<polyline points="{text}" fill="none" stroke="{colour}"/>')
        parts.append(f'<text x="{WIDTH + 8}" y="{12 + 14 * number}" fill="{colour}">{escape(name)}</text>')
    return parts
