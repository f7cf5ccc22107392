"""Writes what was measured into docs/performance.md, and draws its picture: `python -m bench.peers.report`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.drawing import Bars, draw_bars
from bench.pages import put_block, table
from bench.peers.measure import RATES
from bench.peers.peers import FACTS, PEERS
from bench.processes import ROOT

RESULTS = ROOT / "bench" / "results" / "peers.json"
PAGE, PICTURE = ROOT / "docs" / "performance.md", ROOT / "docs" / "peers.svg"
#: The tables of the page stand between these lines, with their names.
BLOCK = "<!-- {name}: written by python -m bench.peers.report -->"
#: A peer that delivers less than this share of a steady rate does not keep up, and its latency only says for how long.
KEEPS_UP = 0.9

Results = Mapping[str, Any]


def figures_table(results: Results) -> str:
    heads = [
        "peer",
        "deliveries/s, in batches",
        "one a call",
        *(f"ms p50, p99 at {rate}/s" for rate in RATES),
        *(f"CPU µs at {rate}/s (publisher)" for rate in RATES),
        "MB idle, after",
    ]
    rows = [
        [
            PEERS[name].title,
            f"{figures['batches_per_second']:,}",
            f"{figures['single_per_second']:,}",
            *(_latency(figures, rate) for rate in RATES),
            *(_cpu(figures, rate) for rate in RATES),
            f"{figures['idle_pss_mb']}, {figures['pss_mb']}",
        ]
        for name, figures in _measured(results)
    ]
    return table(heads, rows)


def facts_table() -> str:
    return table(["peer", *FACTS], [[peer.title, *peer.facts] for peer in PEERS.values()])


def machine_sentence(results: Results) -> str:
    machine = results["machine"]
    return (
        f"Measured on {results['at'][:10]} at commit {results['commit']}: "
        f"{machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_gb']:.0f} GB, Linux {machine['kernel']}, Python {machine['python']}, "
        f"{machine['redis_server'].partition(' sha=')[0]}; "
        f"{results['steal_percent']} % of the machine was stolen by its host, and its load average was "
        f"{results['load_average_before']:.1f} when the run began."
    )


def draw_results(results: Results) -> str:
    measured = _measured(results)

    def bars(title: str, key: str) -> Bars:
        values = {PEERS[name].title: figures.get(key) for name, figures in measured}
        return Bars(title, {title: value for title, value in values.items() if value is not None})

    return draw_bars(
        [
            bars("deliveries a second, in batches", "batches_per_second"),
            bars("deliveries a second, one a call", "single_per_second"),
            bars("p99 in ms at 100 a second", "at_100_ms_p99"),
            bars("p99 in ms at 500 a second", "at_500_ms_p99"),
            bars("µs of CPU a message at 500 a second", "cpu_us_a_message_at_500"),
            bars("MB of memory afterwards", "pss_mb"),
        ]
    )


def blocks(results: Results) -> dict[str, str]:
    """Return what stands on the page, by the names of BLOCK."""
    return {"figures": figures_table(results), "facts": facts_table(), "machine": machine_sentence(results)}


def write_page() -> None:
    results = json.loads(RESULTS.read_text())
    text = PAGE.read_text()
    for name, block in blocks(results).items():
        text = put_block(text, BLOCK.format(name=name), block)
    PAGE.write_text(text)
    PICTURE.write_text(draw_results(results))


def _measured(results: Results) -> list[tuple[str, Results]]:
    """Return the figures of each peer that was measured, PushHub first."""
    return [(name, results["peers"][name]) for name in PEERS if name in results["peers"]]


def _latency(figures: Results, rate: int) -> str:
    if f"at_{rate}_ms_p50" not in figures:
        return "-"
    if figures[f"at_{rate}_per_second"] < KEEPS_UP * rate:
        return f"only {figures[f'at_{rate}_per_second']:.0f}/s"
    return ", ".join(f"{figures[f'at_{rate}_ms_p{percent}']:.1f}" for percent in (50, 99))


def _cpu(figures: Results, rate: int) -> str:
    if f"cpu_us_a_message_at_{rate}" not in figures:
        return "-"
    return f"{figures[f'cpu_us_a_message_at_{rate}']:,} ({figures[f'publisher_cpu_us_a_message_at_{rate}']:,})"


if __name__ == "__main__":
    write_page()
