"""Plots what push window and push backoff do with endpoints of different health: the real rules in simulated time.

    python -m bench.simulate                     five endpoints, drawn to bench/results/simulation.svg
    python -m bench.simulate --table             the push backoff's figures, by the share of nacks

The same seed gives the same picture. Drawing needs bench/requirements.txt; the rest needs only the checkout.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.lane import Answer, Endpoint, History, Lane, Request
from deliveries.rules.flow import Flow

OUTPUT = Path(__file__).parent / "results" / "simulation.svg"
#: How far a latency strays from its mean, to either side.
SPREAD = 0.2


def healthy(*, latency_ms: float = 200) -> Endpoint:
    """Acks everything."""
    return lambda request: Answer(True, _around(latency_ms, request))


def slowing(*, latency_ms: float = 200, slow_ms: float = 1500, at_ms: float) -> Endpoint:
    """Acks everything, but from `at_ms` on it takes its time."""
    return lambda request: Answer(True, _around(slow_ms if request.now_ms >= at_ms else latency_ms, request))


def flaky(*, share: float, latency_ms: float = 20) -> Endpoint:
    """Nacks this share at random."""
    return lambda request: Answer(request.dice.random() >= share, _around(latency_ms, request))


def periodic(*, every: int, latency_ms: float = 20) -> Endpoint:
    """Nacks every so manieth request."""
    return lambda request: Answer(request.number % every != 0, _around(latency_ms, request))


def dead(*, from_ms: float = 0, until_ms: float = float("inf"), latency_ms: float = 20) -> Endpoint:
    """Nacks everything between the two times; healed after."""
    return lambda request: Answer(not from_ms <= request.now_ms < until_ms, _around(latency_ms, request))


def crowded(*, places: int, latency_ms: float = 50) -> Endpoint:
    """Answers so many requests at once, and the others with an immediate 503."""

    def answer(request: Request) -> Answer:
        fits = request.outstanding <= places
        return Answer(fits, _around(latency_ms if fits else latency_ms / 10, request))

    return answer


def _around(mean_ms: float, request: Request) -> float:
    return mean_ms * (1 - SPREAD + 2 * SPREAD * request.dice.random())


@dataclass(frozen=True, slots=True)
class Scenario:
    """An endpoint, what is offered to it, and for how long."""

    title: str
    endpoint: Endpoint
    seconds: float
    per_second: float = 0
    waiting: int = 0

    def run(self, *, seed: int) -> History:
        lane = Lane(self.endpoint, per_second=self.per_second, waiting=self.waiting, seed=seed, flow=Flow())
        return lane.run(self.seconds)


SCENARIOS = {
    "healthy": Scenario("healthy: 200 ms, a million waiting", healthy(), seconds=25, waiting=1_000_000),
    "slow": Scenario(
        "slow: 200 ms, from 15 s on 1,500 ms, a million waiting", slowing(at_ms=15_000), seconds=25, waiting=1_000_000
    ),
    "flaky": Scenario("flaky: 20 % nacks, 5 messages/s offered", flaky(share=0.2), seconds=300, per_second=5),
    "dead": Scenario("dead: nothing but nacks, 5 messages/s offered", dead(), seconds=300, per_second=5),
    "healed": Scenario(
        "healed: dead from 10 s to 70 s, 500 messages/s offered",
        dead(from_ms=10_000, until_ms=70_000, latency_ms=100),
        seconds=180,
        per_second=500,
    ),
}


def mean_gap_ms(endpoint: Endpoint, *, per_second: float, seconds: float, seeds: Sequence[int]) -> float:
    """The mean time between deliveries once the push backoff has found its level, over several seeds."""
    gaps = []
    for seed in seeds:
        history = Lane(endpoint, per_second=per_second, seed=seed, flow=Flow()).run(seconds, samples=1)
        gaps.append(history.mean_gap_ms(after_ms=seconds * 200))
    return sum(gaps) / len(gaps)


def table(*, seed: int) -> None:
    """Print the push backoff's figures, the two documented ones among them."""
    seeds = range(seed, seed + 5)
    print("offered 5 messages/s                 mean gap between deliveries")
    for latency_ms in (20, 100, 200):
        gap = mean_gap_ms(periodic(every=5, latency_ms=latency_ms), per_second=5, seconds=2000, seeds=seeds)
        print(f"every 5th nacked, {latency_ms:3} ms latency    {gap / 1000:6.2f} s")
    for share in (0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, 1.0):
        gap = mean_gap_ms(flaky(share=share), per_second=5, seconds=20_000 if share > 0.3 else 3000, seeds=seeds)
        print(f"{share:4.0%} nacked at random               {gap / 1000:6.2f} s")
    print("\na full backlog, 100 ms latency       deliveries/s")
    for share in (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2):
        history = Lane(flaky(share=share, latency_ms=100), per_second=0, waiting=300_000, seed=seed, flow=Flow(cap=200))
        rate = history.run(60, samples=1).per_second(from_ms=10_000, to_ms=60_000)
        print(f"{share:4.1%} nacked at random, at most 200   {rate:8.1f}")
    for places in (5, 20, 80, 500):
        history = Lane(crowded(places=places), per_second=0, waiting=300_000, seed=seed, flow=Flow())
        rate = history.run(60, samples=1).per_second(from_ms=10_000, to_ms=60_000)
        print(f"crowded, {places:3} places, 50 ms            {rate:8.1f}  (it could take {places * 20})")


def draw(histories: dict[str, History], output: Path) -> None:
    """One row an endpoint: window and outstanding, deliveries a second, level and pauses of the push backoff."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("agg")
    # With a salt of its own, and without its date, the same history makes the same file.
    matplotlib.rcParams["svg.hashsalt"] = "pushhub"
    pyplot = import_module("matplotlib.pyplot")
    figure, rows = pyplot.subplots(len(histories), 3, figsize=(18, 3.6 * len(histories)), squeeze=False)
    for (name, history), (left, middle, right) in zip(histories.items(), rows, strict=True):
        _draw_window(left, history)
        _draw_rate(middle, history)
        _draw_backoff(right, history)
        left.set_title(SCENARIOS[name].title)
        for axes in (left, middle, right):
            axes.set(xlabel="s", xlim=(0, SCENARIOS[name].seconds))
            axes.grid(alpha=0.3)
    figure.tight_layout()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None} if output.suffix == ".svg" else None)


def _draw_window(axes: Any, history: History) -> None:
    at = [sample.now_ms / 1000 for sample in history.samples]
    axes.plot(at, [sample.window for sample in history.samples], label="window")
    axes.plot(at, [sample.outstanding for sample in history.samples], label="outstanding", linewidth=0.8)
    axes.set(ylabel="messages", yscale="symlog", ylim=(0, 40_000))
    axes.legend(loc="lower right", fontsize="small")


def _draw_rate(axes: Any, history: History) -> None:
    pairs = list(pairwise(history.samples))
    rates = [(after.sent - before.sent) * 1000 / (after.now_ms - before.now_ms) for before, after in pairs]
    axes.plot([after.now_ms / 1000 for _, after in pairs], rates, color="tab:green", linewidth=0.8)
    axes.set(title=f"{history.acked:,} acks, {history.nacked:,} nacks", ylabel="deliveries/s")
    axes.set(yscale="symlog", ylim=(0, 100_000))


def _draw_backoff(axes: Any, history: History) -> None:
    lengths = axes.twinx()
    seconds = [(end - begin) / 1000 for begin, end in history.pauses]
    begins = [begin / 1000 for begin, _ in history.pauses]
    lengths.bar(begins, seconds, width=seconds, align="edge", alpha=0.3)
    lengths.set(ylabel="pause (s, bars)", ylim=(0, 62))
    levels = [sample.level for sample in history.samples]
    axes.plot([sample.now_ms / 1000 for sample in history.samples], levels, color="tab:red", linewidth=0.8)
    axes.set(title=f"{len(history.pauses):,} pauses", ylabel="level (line)", ylim=(0, 14))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the dice of endpoints and jitter (default: %(default)s)")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this endpoint; may be repeated")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="an .svg or .png file (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the push backoff's figures and draw nothing")
    options = parser.parse_args()
    if options.table:
        table(seed=options.seed)
        return
    histories = {name: SCENARIOS[name].run(seed=options.seed) for name in options.only or SCENARIOS}
    draw(histories, options.output)
    print(options.output)


if __name__ == "__main__":
    main()
