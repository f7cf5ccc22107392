"""Simulates 100 machines with a push worker each, on 64 cells: `python -m bench.fleetplots`.

Draws docs/scale.svg and writes its figures to bench/results/fleet.json, which takes minutes. The same seed gives the
same picture, to the byte. The checkout and lupa (tests/requirements.txt) are enough. bench/fleet.py says what the
simulation leaves out.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import quantiles

from bench.drawing import Lines, Points, draw_lines
from bench.fleet import Costs, Fleet, Lane
from bench.simulate import wide_open
from deliveries.rules.flow import Flow
from pushhub.capacity.model import read_costs

PICTURE = Path(__file__).parents[1] / "docs" / "scale.svg"
RESULTS = Path(__file__).parent / "results" / "fleet.json"
MACHINES, CELLS = 100, 64
SUBSCRIPTIONS = 1_000_000
STEP_MS, SETTLED_MS = 50.0, 200.0
#: A cell's lanes: of four, two have an endpoint of 20 ms, one of 2 s, and one that is dead.
KINDS = ("prompt", "prompt", "slow", "dead")
LATENCY_MS = {"prompt": 20.0, "slow": 2000.0, "dead": 1.0}


@dataclass(frozen=True, slots=True)
class Fairness:
    """Pushes of each kind of lane over time, and what the prompt ones got."""

    lines: dict[str, Points]
    #: Messages a second of all prompt lanes.
    per_second: float
    #: Jain's index of the prompt lanes: 1 if all got as much, 1/n if one got everything.
    jain: float


def fairness(
    *, machines: int, cells: int, lanes_of_cell: int, seconds: float, seed: int, kinds: Sequence[str] = KINDS
) -> Fairness:
    """Drain endless backlogs of prompt, slow and dead lanes; the first fifth, in which windows open, doesn't count."""
    lanes = []
    for number in range(cells * lanes_of_cell):
        kind = KINDS[number // cells % len(KINDS)]
        if kind in kinds:
            flow = wide_open() if kind == "prompt" else Flow()
            lane = Lane(
                number % cells, latency_ms=LATENCY_MS[kind], acks=kind != "dead", is_full=True, kind=kind, flow=flow
            )
            lanes.append(lane)
    fleet = Fleet(lanes, machines=machines, cells=cells, costs=_costs(), seed=seed)
    steps = round(seconds * 1000 / STEP_MS)
    counts: list[Counter[str]] = []
    for step in range(1, steps + 1):
        before = Counter({kind: sum(lane.pushed for lane in lanes if lane.kind == kind) for kind in LATENCY_MS})
        fleet.run(step * STEP_MS)
        after = Counter({kind: sum(lane.pushed for lane in lanes if lane.kind == kind) for kind in LATENCY_MS})
        after.subtract(before)
        counts.append(after)
        if step == steps // 5:
            warm = {lane: lane.settled for lane in lanes}
    rates = [lane.settled - warm[lane] for lane in lanes if lane.kind == "prompt"]
    lines = {
        kind: [(step / steps, count[kind] * 1000 / STEP_MS) for step, count in enumerate(counts)]
        for kind in dict.fromkeys(kinds)
    }
    per_second = sum(rates) * 1000 / (STEP_MS * (steps - steps // 5))
    return Fairness(lines, per_second, sum(rates) ** 2 / len(rates) / sum(rate * rate for rate in rates))


@dataclass(frozen=True, slots=True)
class Takeover:
    """How long messages took, by the second in which they were acked, around the death of one machine."""

    lines: dict[str, Points]
    #: Messages that the dead worker had, and the longest time that one took.
    put_back: int
    longest_ms: float
    lost: int


def takeover(
    *, machines: int, cells: int, lanes: int, per_second: float, seconds: float, kill_at: float, seed: int
) -> Takeover:
    """Publish steadily to lanes of 50 ms, and kill one machine."""
    rows = [Lane(number % cells, latency_ms=50) for number in range(lanes)]
    fleet = Fleet(rows, machines=machines, cells=cells, costs=_costs(), seed=seed)
    _publish(fleet, per_second=per_second, until_ms=seconds * 1000)
    fleet.run(kill_at * 1000)
    fleet.kill(next(worker for worker in fleet.workers if worker.held))
    fleet.run(seconds * 1000 + 5000)
    waits = [[wait for at, wait in fleet.waits if second <= at / 1000 < second + 1] for second in range(int(seconds))]
    lines: dict[str, Points] = {
        "the slowest message": [(second / seconds, max(each)) for second, each in enumerate(waits) if each],
        "99 of 100 are faster": [
            (second / seconds, quantiles(each, n=100)[98]) for second, each in enumerate(waits) if len(each) > 1
        ],
    }
    settled = [wait for _, wait in fleet.waits]
    waiting = sum(len(lane.waiting) for lane in rows)
    return Takeover(lines, fleet.put_back, max(settled), fleet.offered - len(settled) - waiting - fleet.held())


@dataclass(frozen=True, slots=True)
class Wakeups:
    """What single messages to many subscriptions cost at one rate."""

    per_second: float
    #: Of workers, for each message.
    wakeups: float
    #: Redis' µs for each message with what idle workers ask, and the share of a core of the busiest Redis.
    redis_us: float
    busiest: float
    p99_ms: float


def wakeups(*, machines: int, cells: int, subscriptions: int, per_second: float, seconds: float, seed: int) -> Wakeups:
    """Publish at a rate, each message to a subscription that is chosen at random."""
    fleet = Fleet([], machines=machines, cells=cells, costs=_costs(), seed=seed)
    lanes: dict[int, Lane] = {}

    def any_lane() -> Lane:
        # A lane that gets nothing in this time would only take memory.
        number = fleet.dice.randrange(subscriptions)
        return lanes.setdefault(number, lanes.get(number) or Lane(number % cells, latency_ms=50))

    _publish(fleet, per_second=per_second, until_ms=seconds * 1000, choose=any_lane)
    # All are settled some time after the last one was published.
    fleet.run(seconds * 1000 + SETTLED_MS)
    waits = [wait for _, wait in fleet.waits]
    return Wakeups(
        per_second,
        sum(worker.sleeps for worker in fleet.workers) / fleet.offered,
        sum(cell.busy_ms for cell in fleet.cells) * 1000 / fleet.offered,
        max(cell.busy_ms for cell in fleet.cells) / seconds / 1000,
        quantiles(waits, n=100)[98],
    )


def _publish(fleet: Fleet, *, per_second: float, until_ms: float, choose: Callable[[], Lane] | None = None) -> None:
    """Publish at random times, each message to a lane that is chosen at random."""
    choose = choose or (lambda: fleet.dice.choice(fleet.lanes))

    def publish() -> None:
        fleet.offer(choose())
        plan()

    def plan() -> None:
        when_ms = fleet.now_ms + fleet.dice.expovariate(per_second) * 1000
        if when_ms < until_ms:
            fleet.at(when_ms, publish)

    plan()


def _costs() -> Costs:
    return Costs.measured(read_costs())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.fleetplots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="*", choices=SCENARIOS, metavar="|".join(SCENARIOS), help="only these")
    parser.add_argument("--seed", type=int, default=1, help="the dice (default: %(default)s)")
    options = parser.parse_args()
    for name in options.scenarios or SCENARIOS:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = [asdict(panel) for panel in SCENARIOS[name](options.seed)]
        RESULTS.write_text(json.dumps(results, ensure_ascii=False) + "\n")
        for panel in results[name]:
            print(f"{panel['title']}: {panel['figures']}")
    PICTURE.write_text(draw_lines(read_panels()))


def read_panels() -> list[Lines]:
    """Return the panels of all scenarios, as they were simulated last."""
    results = json.loads(RESULTS.read_text())
    return [Lines(**panel) for name in SCENARIOS for panel in results.get(name, [])]


def _draw_fairness(seed: int) -> list[Lines]:
    size = {"machines": MACHINES, "cells": CELLS, "lanes_of_cell": 40, "seconds": 2, "seed": seed}
    beside, alone = fairness(**size), fairness(**size, kinds=("prompt",))
    figures = f"{beside.per_second / alone.per_second:.0%} of the rate alone, Jain's index {beside.jain:.3f}"
    labels = [f"{second / 2:g} s" for second in range(5)]
    title = f"pushes a second of {CELLS * 40:,} subscriptions"
    return [Lines(title, f"prompt ones: {figures}", beside.lines, labels, 10, 1e7)]


def _draw_takeover(seed: int) -> list[Lines]:
    seconds = 25
    taken = takeover(
        machines=MACHINES, cells=CELLS, lanes=1000, per_second=20_000, seconds=seconds, kill_at=5.5, seed=seed
    )
    figures = f"{taken.put_back} messages put back, {taken.lost} lost, the last after {taken.longest_ms / 1000:.1f} s"
    labels = [f"{second} s" for second in range(0, seconds + 1, 5)]
    return [Lines("ms from publish to ack; a machine dies at 5.5 s", figures, taken.lines, labels, 10, 1e5)]


def _draw_wakeups(seed: int) -> list[Lines]:
    seconds = {1_000: 5.0, 10_000: 2.0, 100_000: 0.6, 500_000: 0.4}
    rows = [
        wakeups(machines=MACHINES, cells=CELLS, subscriptions=SUBSCRIPTIONS, per_second=rate, seconds=length, seed=seed)
        for rate, length in seconds.items()
    ]
    labels = [f"{rate:,}/s" for rate in seconds]

    def points(name: str) -> Points:
        return [(number / (len(rows) - 1), getattr(row, name)) for number, row in enumerate(rows)]

    last = rows[-1]
    costs = Lines(
        f"single messages to {SUBSCRIPTIONS:,} subscriptions",
        f"at {last.per_second:,}/s: {last.redis_us:.0f} µs of Redis, {last.wakeups:.2f} wake-ups a message",
        {"µs of Redis for a message": points("redis_us"), "wake-ups for a message": points("wakeups")},
        labels,
        0.1,
        1e5,
    )
    load = Lines(
        "their time, and the load of Redis",
        f"at {last.per_second:,}/s: p99 {last.p99_ms:.0f} ms, the busiest Redis uses {last.busiest:.0%} of its core",
        {"ms from publish to ack, p99": points("p99_ms"), "share of a core, busiest Redis": points("busiest")},
        labels,
        0.001,
        1000,
    )
    return [costs, load]


SCENARIOS: dict[str, Callable[[int], list[Lines]]] = {
    "fairness": _draw_fairness,
    "takeover": _draw_takeover,
    "wakeups": _draw_wakeups,
}


if __name__ == "__main__":
    main()
