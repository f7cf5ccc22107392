"""What the journal costs the push worker: in the thread that pays for it, and in whole drains."""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Nginx, nginx, say, wait_until
from bench.stand import Row, stand
from tests.ports import free_port

TICKS = os.sysconf("SC_CLK_TCK")
#: Of the threads that a push worker starts before its engine: Celery's own, the events, and then the settler.
SETTLER = 2


@dataclass(frozen=True, slots=True)
class Spent:
    """Microseconds of CPU a message: of the settler, which tells the journal, of the last thread, which is the
    journal's where there is one, and of all threads.
    """

    settler: float
    last: float
    whole: float


def journal(quick: bool) -> Row:
    """Drains with the journal and without, in turns. A drain as a whole varies by more than the journal costs."""
    count, rounds = (2_000, 1) if quick else (60_000, 8)
    on: list[Spent] = []
    off: list[Spent] = []
    with nginx(free_port()) as endpoint:
        for number in range(rounds):
            # Each goes first in every other round.
            for word in ("off", "on") if number % 2 else ("on", "off"):
                (on if word == "on" else off).append(_drain(endpoint, count, word))
    whole = statistics.median(drain.whole for drain in off)
    told = statistics.median(drain.settler for drain in on) - statistics.median(drain.settler for drain in off)
    cost = told + statistics.median(drain.last for drain in on)
    say(f"  journal: {cost:.1f} µs of CPU a message, {cost / whole * 100:.1f} % of a push worker's {whole:.0f}")
    return {
        "journal_us_a_message": round(cost, 2),
        "journal_cost_percent": round(cost / whole * 100, 1),
        "journal_drain_us_a_message_on": round(statistics.median(drain.whole for drain in on), 1),
        "journal_drain_us_a_message_off": round(whole, 1),
    }


def _drain(endpoint: Nginx, count: int, word: str) -> Spent:
    with stand() as stood:
        stood.subscribe(endpoint.url)
        stood.publish(count)
        from_ = endpoint.received()
        with stood.worker(PUSHHUB_JOURNAL=word) as worker:
            wait_until(lambda: endpoint.received() - from_ >= count, seconds=120, what="the drain")
            wait_until(lambda: not stood.left(), seconds=60, what="the last ack")
            threads = [seconds / count * 1e6 for seconds in _thread_seconds(worker.pid)]
    spent = Spent(threads[SETTLER], threads[-1], sum(threads))
    say(f"  {word}: settler {spent.settler:.2f} µs, last thread {spent.last:.2f} µs, in all {spent.whole:.0f} µs")
    return spent


def _thread_seconds(pid: int) -> list[float]:
    """Seconds of CPU of each thread, in order of their start."""
    tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))
    fields = [(path / "stat").read_text().rpartition(")")[2].split() for path in tasks]
    return [(int(stat[11]) + int(stat[12])) / TICKS for stat in fields]
