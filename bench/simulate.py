"""Simulates the flow control of a lane with endpoints of different kinds: the real rules in simulated time.

    python -m bench.simulate                     draws every scenario to docs/flow-control.svg and prints its figures
    python -m bench.simulate --table             prints the figures, and those by share of nacks, without a picture

Either takes minutes. The same seed gives the same picture, to the byte. The checkout and lupa
(tests/requirements.txt) are enough.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.drawing import Panel, draw
from bench.lane import Answer, Endpoint, History, Lane, Request
from deliveries.rules.flow import Flow

OUTPUT = Path(__file__).parents[1] / "docs" / "flow-control.svg"
#: How far a latency strays from its mean, to either side.
SPREAD = 0.2
#: The latency of a nack from a full or dead endpoint, as a share of the latency of an ack.
NACK_LATENCY = 0.1
#: More messages than any scenario can send.
PLENTY = 1_000_000_000


def healthy(*, latency_ms: float = 200) -> Endpoint:
    """Return an endpoint that acks everything."""
    return lambda request: Answer(True, _around(latency_ms, request))


def slowing(*, latency_ms: float = 200, slow_ms: float = 1500, at_ms: float) -> Endpoint:
    """Return an endpoint that acks everything, but slowly from `at_ms` on."""
    return lambda request: Answer(True, _around(slow_ms if request.now_ms >= at_ms else latency_ms, request))


def flaky(*, share: float, latency_ms: float = 20) -> Endpoint:
    """Return an endpoint that nacks this share of requests at random."""
    return lambda request: Answer(request.dice.random() >= share, _around(latency_ms, request))


def periodic(*, every: int, latency_ms: float = 20) -> Endpoint:
    """Return an endpoint that nacks every n-th request."""
    return lambda request: Answer(request.number % every != 0, _around(latency_ms, request))


def poisoned(*, every: int, count: int, latency_ms: float = 20) -> Endpoint:
    """Return an endpoint that nacks every attempt of every n-th message, for up to `count` messages."""

    def answer(request: Request) -> Answer:
        poison = request.message % every == 0 and request.message <= every * count
        return Answer(not poison, _around(latency_ms, request))

    return answer


def dead(
    *, from_ms: float = 0, until_ms: float = math.inf, latency_ms: float = 20, alive: Endpoint | None = None
) -> Endpoint:
    """Return an endpoint that nacks everything between the two times, and is `alive` before and after."""
    otherwise = alive or healthy(latency_ms=latency_ms)

    def answer(request: Request) -> Answer:
        if from_ms <= request.now_ms < until_ms:
            return Answer(False, _around(latency_ms * NACK_LATENCY, request))
        return otherwise(request)

    return answer


def limited(*, places: int, latency_ms: float = 50, then: int = 0, at_ms: float = math.inf) -> Endpoint:
    """Return an endpoint that works on `places` requests at once, from `at_ms` on `then`, and nacks others at once."""
    ends: list[float] = []

    def answer(request: Request) -> Answer:
        while ends and ends[0] <= request.now_ms:
            heapq.heappop(ends)
        if len(ends) >= (places if request.now_ms < at_ms else then):
            return Answer(False, _around(latency_ms * NACK_LATENCY, request))
        took = _around(latency_ms, request)
        heapq.heappush(ends, request.now_ms + took)
        return Answer(True, took)

    return answer


def queueing(*, servers: int, latency_ms: float = 50) -> Endpoint:
    """Return an endpoint that works on this many requests at once and lets others wait.

    Its latency grows with the number of outstanding requests.
    """
    idle_at = [0.0] * servers

    def answer(request: Request) -> Answer:
        ends = max(idle_at[0], request.now_ms) + _around(latency_ms, request)
        heapq.heapreplace(idle_at, ends)
        return Answer(True, ends - request.now_ms)

    return answer


def _around(mean_ms: float, request: Request) -> float:
    return mean_ms * (1 - SPREAD + 2 * SPREAD * request.dice.random())


def backing_off() -> Flow:
    """Return the flow of a lane after a minute of nothing but nacks: window 1, in backoff."""
    lane = Lane(dead(), per_second=5)
    lane.run(60, samples=1)
    learned = lane.law.flow
    # The clock of the next run starts at 0.
    return Flow(
        window=1.0,
        round_size=1.0,
        nack_share=learned.nack_share,
        nack_share_seen=learned.nack_share_seen,
        gap_ms=learned.gap_ms,
        backoff_level=learned.backoff_level,
    )


def wide_open() -> Flow:
    """Return the flow of a lane at the end of slow start."""
    return Flow(window=3000.0, results_seen=1000.0, round_size=3000.0)


@dataclass(frozen=True, slots=True)
class Scenario:
    """An endpoint, the load that is offered to it, and for how long; `figures` sums a history up."""

    title: str
    endpoint: Callable[[], Endpoint]
    seconds: float
    figures: Callable[[History], str]
    per_second: float = 0
    waiting: int = 0
    flow: Callable[[], Flow] = Flow
    max_attempts: int = 0

    def run(self, *, seed: int, samples: int = 240) -> History:
        lane = Lane(
            self.endpoint(),
            per_second=self.per_second,
            waiting=self.waiting,
            seed=seed,
            flow=self.flow(),
            max_attempts=self.max_attempts,
        )
        return lane.run(self.seconds, samples=samples)


def _used(places: int, latency_ms: float, from_seconds: float, to_seconds: float) -> Callable[[History], str]:
    def figures(history: History) -> str:
        used = history.acks_per_second(from_seconds, to_seconds) * latency_ms / 1000 / places
        return f"{used:.0%} of capacity, {history.nacks(from_seconds, to_seconds):.1%} nacks"

    return figures


def _gaps(after_seconds: float) -> Callable[[History], str]:
    def figures(history: History) -> str:
        gaps = sorted(gap / 1000 for gap in history.gaps_ms(after_ms=after_seconds * 1000))
        return f"gaps {gaps[0]:.2f} to {gaps[-1]:.2f} s, mean {sum(gaps) / len(gaps):.2f} s"

    return figures


def _acks(from_seconds: float, to_seconds: float) -> Callable[[History], str]:
    return lambda history: f"{history.acks_per_second(from_seconds, to_seconds):,.0f} acks/s"


def _healed(history: History) -> str:
    after = history.healed_ms / 1000
    old = history.acks_per_second(5, 10)
    rates = [history.acks_per_second(after + wait, after + wait + 1) / old for wait in (5, 15)]
    return f"{rates[0]:.0%} of the old rate 5 s after the first ack, {rates[1]:.0%} after 15 s"


def _knee(servers: int, latency_ms: float) -> Callable[[History], str]:
    def figures(history: History) -> str:
        used = history.acks_per_second(10, 20) * latency_ms / 1000 / servers
        return f"{used:.0%} of the best rate, {history.mean_latency_ms(10, 20) / latency_ms:.2f} times the latency"

    return figures


SCENARIOS = {
    "healthy": Scenario(
        "healthy, 200 ms",
        healthy,
        seconds=12,
        waiting=PLENTY,
        figures=lambda history: f"window {history.samples[-1].window:,.0f}",
    ),
    "limit_10": Scenario(
        "at most 10 requests at once, 50 ms", lambda: limited(places=10), 30, _used(10, 50, 20, 30), waiting=PLENTY
    ),
    "limit_100": Scenario(
        "at most 100 requests at once, 50 ms", lambda: limited(places=100), 30, _used(100, 50, 20, 30), waiting=PLENTY
    ),
    "limit_1000": Scenario(
        "at most 1,000 requests at once, 200 ms",
        lambda: limited(places=1000, latency_ms=200),
        30,
        _used(1000, 200, 20, 30),
        waiting=PLENTY,
    ),
    "limit_5000": Scenario(
        "at most 5,000 requests at once, 200 ms, from a window of 3,000",
        lambda: limited(places=5000, latency_ms=200),
        28,
        _used(5000, 200, 20, 28),
        waiting=PLENTY,
        flow=wide_open,
    ),
    "limit_doubles": Scenario(
        "at most 100 requests at once, from 10 s on 200",
        lambda: limited(places=100, then=200, at_ms=10_000),
        20,
        _used(200, 50, 15, 20),
        waiting=PLENTY,
    ),
    "limit_halves": Scenario(
        "at most 100 requests at once, from 10 s on 50",
        lambda: limited(places=100, then=50, at_ms=10_000),
        20,
        _used(50, 50, 15, 20),
        waiting=PLENTY,
    ),
    "queue": Scenario(
        "works on 30 requests at once, lets others wait, 50 ms",
        lambda: queueing(servers=30),
        20,
        _knee(30, 50),
        waiting=PLENTY,
    ),
    "nacks_5": Scenario(
        "5 % nacks at random, 10 ms, at most 30 outstanding",
        lambda: flaky(share=0.05, latency_ms=10),
        20,
        _acks(10, 20),
        waiting=PLENTY,
        flow=lambda: Flow(cap=30),
    ),
    "nacks_10": Scenario(
        "10 % nacks at random, 10 ms, at most 30 outstanding",
        lambda: flaky(share=0.1, latency_ms=10),
        120,
        _acks(20, 120),
        waiting=PLENTY,
        flow=lambda: Flow(cap=30),
    ),
    "nacks_20": Scenario(
        "every fifth nacked, 5 messages/s offered", lambda: periodic(every=5), 600, _gaps(200), per_second=5
    ),
    "dead": Scenario("nothing but nacks, 5 messages/s offered", dead, 600, _gaps(150), per_second=5),
    "healed": Scenario(
        "at most 100 requests at once, dead from 10 s to 70 s, 50 ms",
        lambda: dead(from_ms=10_000, until_ms=70_000, latency_ms=50, alive=limited(places=100)),
        130,
        _healed,
        waiting=PLENTY,
    ),
    "poison": Scenario(
        "30 poison messages, 50 messages/s offered, dead letters after 5 attempts",
        lambda: poisoned(every=20, count=30),
        60,
        lambda history: f"{history.dead_lettered} dead letters, {history.acked / 60:.0f} acks/s",
        per_second=50,
        max_attempts=5,
    ),
    "poison_7": Scenario(
        "every seventh message always nacked, dead letters after 5 attempts",
        lambda: poisoned(every=7, count=PLENTY),
        20,
        lambda history: f"{history.acks_per_second(10, 20) / (2500 * 6 / 7):.0%} of the rate without retries",
        waiting=PLENTY,
        flow=lambda: Flow(cap=50),
        max_attempts=5,
    ),
}


def mean_gap_ms(endpoint: Endpoint, *, per_second: float, seconds: float, seeds: Sequence[int]) -> float:
    """Return the mean time between deliveries once the flow control has settled, over several seeds."""
    gaps = []
    for seed in seeds:
        history = Lane(endpoint, per_second=per_second, seed=seed).run(seconds, samples=1)
        gaps.append(history.mean_gap_ms(after_ms=seconds * 200))
    return sum(gaps) / len(gaps)


def ack_rate(endpoint: Endpoint, *, seeds: Sequence[int], seconds: float = 60, flow: Flow | None = None) -> float:
    """Return the acks per second of a full lane with at most 30 outstanding messages, over several seeds.

    Only the second half of the time counts.
    """
    rates = []
    for seed in seeds:
        lane = Lane(endpoint, waiting=PLENTY, seed=seed, flow=flow or Flow(cap=30))
        rates.append(lane.run(seconds, samples=10).acks_per_second(seconds / 2, seconds))
    return sum(rates) / len(rates)


def table(*, seed: int) -> None:
    """Print the figures by share of nacks: for a full lane at an endpoint of 10 ms, and for 5 offered messages/s."""
    seeds = range(seed, seed + 5)
    print("\n10 ms, at most 30 outstanding          acks/s at random     periodic")
    for percent in (1, 2, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20):
        seconds = 300 if percent > 15 else 60 if percent > 8 else 8
        at_random = ack_rate(flaky(share=percent / 100, latency_ms=10), seeds=seeds, seconds=seconds)
        even = 100 % percent == 0
        beside = ack_rate(periodic(every=100 // percent, latency_ms=10), seeds=seeds, seconds=seconds) if even else 0
        print(f"{percent:4} % nacked {at_random:40,.1f} {f'{beside:12,.1f}' if even else ''}")
    print("\n5 messages/s offered                   mean gap between deliveries")
    for share in (0.2, 0.25, 0.3, 0.5, 0.7, 0.9, 1.0):
        gap = mean_gap_ms(flaky(share=share), per_second=5, seconds=4000, seeds=seeds)
        print(f"{share:5.0%} nacked at random {gap / 1000:26.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="the dice of endpoints and jitter (default: %(default)s)")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this row; may be repeated")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="an .svg file (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the figures and draw nothing")
    options = parser.parse_args()
    panels = []
    for name in options.only or SCENARIOS:
        scenario = SCENARIOS[name]
        history = scenario.run(seed=options.seed)
        figures = scenario.figures(history)
        print(f"{scenario.title:75} {figures}")
        panels.append(Panel(scenario.title, figures, scenario.seconds, history.samples))
    if options.table:
        table(seed=options.seed)
        return
    options.output.write_text(draw(panels))
    print(options.output)


if __name__ == "__main__":
    main()
