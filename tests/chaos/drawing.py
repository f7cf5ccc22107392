"""Draws a storm as one SVG: messages and waiting deliveries over time with the faults, and what everything takes.

    python -m tests.chaos.drawing build/soak.jsonl docs/soak.svg "what was run"

draws a trace, also that of a storm that still goes on.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson

from tests.chaos.ledger import Incident
from tests.chaos.samples import STORES, Sample

WIDTH, HEIGHT, MARGIN, HEAD = 900, 130, 60, 40
COLOURS = ("#1f6feb", "#2da44e", "#cf222e", "#8250df", "#bf8700", "#57606a", "#0550ae", "#953800")
#: The tables whose rows come and go, and what else is counted; the journal's stay for days.
ROWS = ("message", "keys in Redis", "auditentry", "deadletter", "signingkey")
JOURNAL = ("segment", "metricminute", "gaugeminute", "files of the journal")
Line = tuple[str, list[tuple[float, float]]]


def draw(title: str, incidents: Sequence[Incident], samples: Sequence[Sample]) -> str:
    panels: list[tuple[str, list[Line]]] = [
        (
            "messages a second",
            [("published", _rate(samples, lambda it: it.published)), ("deliveries", _rates(samples))],
        ),
        ("deliveries that wait", [("waiting", [(it.at, it.waiting) for it in samples if it.waiting >= 0])]),
        ("memory of processes in MB", _by_name(samples, lambda it: it.megabytes, without=("redis", *STORES))),
        ("open descriptors", _by_name(samples, lambda it: it.descriptors)),
        ("Redis' memory, and disks, in MB", _by_name(samples, lambda it: it.megabytes, only=("redis", *STORES))),
        ("rows of tables, keys in Redis", _by_name(samples, lambda it: it.rows, only=ROWS)),
        ("rows and files that stay for days", _by_name(samples, lambda it: it.rows, only=JOURNAL)),
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
        parts += _faults(incidents, began, ends)
        parts += _lines(lines, began, ends)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _rates(samples: Sequence[Sample]) -> list[tuple[float, float]]:
    return _rate(samples, lambda it: it.deliveries)


def _rate(samples: Sequence[Sample], of: Callable[[Sample], int]) -> list[tuple[float, float]]:
    return [(after.at, (of(after) - of(before)) / (after.at - before.at)) for before, after in pairwise(samples)]


def _by_name(
    samples: Sequence[Sample],
    of: Callable[[Sample], Mapping[str, float]],
    *,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> list[Line]:
    """Return a line for each role, which is that of its largest process: the others are much like it."""
    lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        largest: dict[str, float] = {}
        for name, value in of(sample).items():
            role = name.partition("-")[0]
            if role in without or (only and role not in only):
                continue
            largest[role] = max(value, largest.get(role, 0.0))
        for role, value in largest.items():
            lines[role].append((sample.at, value))
    return sorted(lines.items())


def _faults(incidents: Sequence[Incident], began: float, ends: float) -> list[str]:
    seconds = ends - began
    parts = []
    for incident in incidents:
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


def read_trace(path: Path) -> tuple[list[Incident], list[Sample]]:
    records = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    kinds: dict[str, list[Any]] = {"Incident": [], "Sample": []}
    for record in records:
        what = record.pop("what")
        kinds[what].append(Incident(**record) if what == "Incident" else Sample(**record))
    return kinds["Incident"], kinds["Sample"]


def main() -> None:
    trace, target, title = sys.argv[1:]
    Path(target).write_text(draw(title, *read_trace(Path(trace))))


if __name__ == "__main__":
    main()
