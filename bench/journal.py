"""What the journal costs: drains with it and without, in turns."""

from __future__ import annotations

import statistics

from bench.drain import Round, our_round
from bench.processes import nginx, say
from bench.stand import Row
from tests.ports import free_port


def journal(quick: bool) -> Row:
    """CPU and rate of a drain with the journal, as a share of those without it."""
    count, rounds = (20_000, 2) if quick else (100_000, 4)
    on, off = [], []
    with nginx(free_port()) as endpoint:
        for _ in range(rounds):
            off.append(our_round(endpoint, count, PUSHHUB_JOURNAL="off"))
            on.append(our_round(endpoint, count, PUSHHUB_JOURNAL="on"))
    cost = (_median(off, "rate") / _median(on, "rate") - 1) * 100
    cpu = (_median(on, "cpu_us") / _median(off, "cpu_us") - 1) * 100
    say(f"  journal: {cost:.1f} % of the rate, {cpu:.1f} % more CPU a message")
    return {
        "journal_cost_percent": round(cost, 1),
        "journal_cpu_percent": round(cpu, 1),
        "journal_on_per_second": round(_median(on, "rate")),
        "journal_off_per_second": round(_median(off, "rate")),
        "journal_on_cpu_us_a_message": round(_median(on, "cpu_us"), 1),
        "journal_off_cpu_us_a_message": round(_median(off, "cpu_us"), 1),
    }


def _median(rounds: list[Round], name: str) -> float:
    return float(statistics.median(getattr(one, name) for one in rounds))
