"""What the journal costs: drains with it and without, in turns."""

from __future__ import annotations

from bench.drain import Round, our_round
from bench.processes import nginx, say
from bench.stand import Row
from tests.ports import free_port


def journal(quick: bool) -> Row:
    """CPU and rate of a drain with the journal, as a share of those without it.

    Of each kind the best round counts: what else the machine does only ever adds to a round.
    """
    count, rounds = (20_000, 3) if quick else (60_000, 8)
    on: list[Round] = []
    off: list[Round] = []
    with nginx(free_port()) as endpoint:
        for number in range(rounds):
            # Each goes first in every other round.
            for word in ("off", "on") if number % 2 else ("on", "off"):
                (on if word == "on" else off).append(our_round(endpoint, count, PUSHHUB_JOURNAL=word))
    rate_on, rate_off = max(one.rate for one in on), max(one.rate for one in off)
    cpu_on, cpu_off = min(one.cpu_us for one in on), min(one.cpu_us for one in off)
    cost, cpu = (1 - rate_on / rate_off) * 100, (cpu_on / cpu_off - 1) * 100
    say(f"  journal: {cost:.1f} % of the rate, {cpu:.1f} % more CPU a message")
    return {
        "journal_cost_percent": round(cost, 1),
        "journal_cpu_percent": round(cpu, 1),
        "journal_on_per_second": round(rate_on),
        "journal_off_per_second": round(rate_off),
        "journal_on_cpu_us_a_message": round(cpu_on, 1),
        "journal_off_cpu_us_a_message": round(cpu_off, 1),
    }
