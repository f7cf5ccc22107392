"""Writes the tables of docs/scale.md from what was measured: `python -m bench.scale`."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.capacity import CHECKED, LOADS
from bench.cluster import RESULTS as CLUSTER_RESULTS
from bench.fleetplots import read_panels
from bench.layouts import RESULTS as LAYOUTS_RESULTS
from bench.limits import LIMITS
from bench.limits import RESULTS as LIMITS_RESULTS
from bench.pages import put_block, table
from bench.processes import ROOT
from bench.regions import RESULTS as REGIONS_RESULTS
from bench.takeover import RESULTS as TAKEOVER_RESULTS
from bench.vacuum import RESULTS as VACUUM_RESULTS
from bench.vacuum import TABLES, quarters
from pushhub.capacity.command import main as print_capacity
from pushhub.capacity.model import PARTS, Load, plan, read_costs, spent

PAGE = ROOT / "docs" / "scale.md"
MARK = "<!-- {name}: written by python -m bench.scale -->"
UNITS = {
    "request": "a publish request",
    "message": "a message",
    "delivery": "a delivery",
    "published_kb": "a kB published",
    "delivered_kb": "a kB delivered",
}
FLOWS = {
    "http_bytes": "HTTP, bytes",
    "redis_bytes": "Redis' connections, bytes",
    "wal_bytes": "write-ahead log, bytes",
    "wal_flushes": "flushes of it",
}
EXAMPLE = ("--rate=5000", "--fanout=2", "--batch=100")
#: The rates of the paper exercise, in batches of 100, messages of 1 kB, one subscription each.
RATES = (1_000, 10_000, 100_000, 1_000_000)
#: Assumptions of its cost: what clouds ask for a core of a general machine and for a GB of disk in a month.
DOLLARS_A_CORE, DOLLARS_A_GB = 30, 0.1
MACHINE_CORES = 16


def costs_table(measured: Mapping[str, Any]) -> str:
    heads = ["µs of CPU", *UNITS.values()]
    rows = [[part, *(f"{measured['costs'][f'{part}_us'][unit]:,.1f}" for unit in UNITS)] for part in PARTS]
    rows += [[title, *(_short(measured["costs"][flow][unit]) for unit in UNITS)] for flow, title in FLOWS.items()]
    return table(heads, rows)


def check_table(measured: Mapping[str, Any], checked: Mapping[str, Any]) -> str:
    one = replace(LOADS["plain"], rate=1)
    model_us = {part: spent(measured["costs"][f"{part}_us"], one) for part in PARTS}
    heads = ["push workers", "messages/s", "by the model", "idle", "others", *(f"{part}, µs" for part in PARTS)]
    rows = []
    for run in checked["runs"]:
        cores, rate = checked["cores"], run["per_second"]
        # What is neither idle nor ours: the kernel's own threads and interrupts, and other programs.
        others = 1 - run["idle_percent"] / 100 - rate * (sum(run["us"].values()) + run["load_us"]) / 1e6 / cores
        everything_us = (sum(model_us.values()) + run["load_us"]) / cores / (1 - others)
        modelled = 1e6 / max(everything_us, model_us["redis"], model_us["push"] / run["workers"])
        parts = [f"{run['us'][part]:.0f} ({model_us[part]:.0f})" for part in PARTS]
        shares = [f"{run['idle_percent']} %", f"{100 * others:.0f} %"]
        rows.append([str(run["workers"]), f"{rate:,}", f"{modelled:,.0f}", *shares, *parts])
    return table(heads, rows)


def paper_table(measured: Mapping[str, Any]) -> str:
    plans = [plan(Load(rate, batch=100), measured) for rate in RATES]
    rows = [[f"{part} processes", *(f"{need['parts'][part]['processes']:,}" for need in plans)] for part in PARTS]
    rows += [
        ["deployments", *(f"{need['deployments']:,}" for need in plans)],
        ["cores", *(f"{need['cores']:,}" for need in plans)],
        [f"machines of {MACHINE_CORES} cores", *(f"{-(-need['cores'] // MACHINE_CORES):,}" for need in plans)],
        ["an hour of messages, GB", *(_short(need["postgresql"]["storedBytes"] / 1e9) for need in plans)],
        ["write-ahead log, MB/s", *(_short(need["postgresql"]["writeAheadLogBytesPerSecond"] / 1e6) for need in plans)],
        ["writes to disk, a second", *(f"{need['postgresql']['writesPerSecond']:,}" for need in plans)],
        ["HTTP, Gbit/s", *(_short(need["network"]["httpBitsPerSecond"] / 1e9) for need in plans)],
        ["Redis, Gbit/s", *(_short(need["network"]["redisBitsPerSecond"] / 1e9) for need in plans)],
        ["dollars a month", *(f"{_dollars(need):,}" for need in plans)],
    ]
    return table(["messages/s", *(f"{rate:,}" for rate in RATES)], rows)


def limits_table(measured: Mapping[str, Any]) -> str:
    """Return a line for each row of bench/limits.py, with those that were not measured."""
    rows = []
    for name, limit in LIMITS.items():
        result = measured.get(name)
        figures = dict(result["figures"]) if result else {}
        beyond = figures.pop("beyond", "")
        text = "; ".join(f"{key}: {_plain(value)}" for key, value in figures.items()) or "not measured"
        rows.append([f"{limit.count:,} {limit.what} (`{name}`)", text, beyond])
    return table(["limit", "figures", "beyond"], rows)


def takeover_table(measured: Mapping[str, Any]) -> str:
    """Return the seconds of each take-over, by what had become of its holder."""
    by_fate = measured["figures"]
    rows = [[what, *(f"{figures[what]:.1f}" for figures in by_fate.values())] for what in next(iter(by_fate.values()))]
    return table(["held", *(f"{fate}, s" for fate in by_fate)], rows)


def cluster_table(measured: Mapping[str, Any]) -> str:
    """Return a line for each layout of bench/cluster.py."""
    rows = [
        [name, f"{row['per_second']:,}", *(f"{row[key]:.1f}" for key in ("redis_us", "busiest_us", "push_us"))]
        for name, row in measured["figures"].items()
    ]
    return table(["", "deliveries/s", "Redis, µs a delivery", "of which the busiest server", "push workers, µs"], rows)


def regions_table(measured: Mapping[str, Any]) -> str:
    """Return the times of publishes in each region, and those of a cut and of the return."""
    figures = dict(measured["figures"])
    rows = [
        [f"publish in the {name} region, p50 and p99, ms", f"{row['p50_ms']:,.1f} and {row['p99_ms']:,.1f}"]
        for name, row in ((name, figures.pop(name)) for name in ("near", "far"))
    ]
    rows += [[f"the far region is {key}", f"{value:.1f}"] for key, value in figures.items()]
    return table([f"{measured['rate']} publishes a second in each region in turn", "figures"], rows)


def steady_table(results: Mapping[str, Any]) -> str:
    """Return a column for each run of bench/vacuum.py."""
    runs = list(results.values())

    def row(title: str, text: str) -> list[str]:
        return [title, *(text.format(**run["figures"]) for run in runs)]

    rows = [
        ["minutes", *(f"{run['run']['seconds'] / 60:g}" for run in runs)],
        row("messages/s", "{per_second:,}"),
        row("publish p50 and p99, ms", "{p50_ms} and {p99_ms}"),
        ["p99 in each quarter of the time, ms", *(", ".join(map(str, quarters(run["samples"]))) for run in runs)],
    ]
    for table_name in TABLES:
        names = {"table": "mb", "indexes": "index_mb"}
        rows += [
            row(f"{table_name}: {what} at most, MB", f"{{{table_name}_{name}_most:,.0f}}")
            for what, name in names.items()
        ]
        rows += [
            row(f"{table_name}: dead rows at most", f"{{{table_name}_dead_most:,}}"),
            row(
                f"{table_name}: vacuums, and the longest, s",
                f"{{{table_name}_vacuums}} and {{{table_name}_vacuum_s_most:.1f}}",
            ),
        ]
    rows += [
        row("PostgreSQL, µs a message, of which vacuum", "{postgresql_us} and {vacuum_us}"),
        row("all other parts, µs a message", "{others_us}"),
        row("write-ahead log, bytes a message", "{wal_bytes:,.0f}"),
        row("messages that wait for their push, at most", "{waiting_most:,}"),
        row("stolen from the machine", "{steal_percent} %"),
    ]
    return table(["", *results], rows)


def layouts_table(measured: Mapping[str, Any]) -> str:
    """Return a line for each layout of bench/layouts.py, without and with messages that wait."""
    heads = ["a message", "statements, µs", "vacuum, µs", "write-ahead log, bytes", "tables and indexes, MB"]
    rows = [
        [
            name,
            *(f"{figures[key]:,.1f}" for key in ("statements_us", "vacuum_us")),
            f"{figures['wal_bytes']:,.0f}",
            f"{figures['mb']:,.0f}",
        ]
        for name, figures in measured["layouts"].items()
    ]
    return table(heads, rows)


def _plain(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"


def _short(value: float) -> str:
    """Return a number with three digits that count."""
    return f"{float(f'{value:.3g}'):,g}"


def _dollars(need: Mapping[str, Any]) -> int:
    """Return the price with two digits: more would say more than is known."""
    dollars = need["cores"] * DOLLARS_A_CORE + need["postgresql"]["storedBytes"] / 1e9 * DOLLARS_A_GB
    return int(float(f"{dollars:.2g}"))


def example() -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_capacity(EXAMPLE)
    return f"```text\n$ pushhub capacity {' '.join(EXAMPLE)}\n{printed.getvalue()}```"


def machine_sentence(measured: Mapping[str, Any]) -> str:
    return (
        f"Measured on {measured['at'][:10]} at commit {measured['commit']}: {measured['cores']} cores of "
        f"{measured['cpu']}, Linux {measured['kernel']}, Python {measured['python']}, "
        f"{measured['redis_server'].partition(' sha=')[0]}, {measured['postgresql'].partition(' (Debian')[0]}, "
        f"with a load average of {measured['load_average_before']:.1f} when it began."
    )


def blocks() -> dict[str, str]:
    """Return what stands on the page, by the names of MARK."""
    measured, checked = read_costs(), json.loads(CHECKED.read_text())
    return {
        "costs": costs_table(measured),
        "machine": machine_sentence(measured),
        "check": check_table(measured, checked),
        "paper": paper_table(measured),
        "example": example(),
        "simulated": table(["simulated", "figures"], [[panel.title, panel.figures] for panel in read_panels()]),
        "limits": limits_table(json.loads(LIMITS_RESULTS.read_text())),
        "cluster": cluster_table(json.loads(CLUSTER_RESULTS.read_text())),
        "takeover": takeover_table(json.loads(TAKEOVER_RESULTS.read_text())),
        "regions": regions_table(json.loads(REGIONS_RESULTS.read_text())),
        "layouts": layouts_table(json.loads(LAYOUTS_RESULTS.read_text())),
        "steady": steady_table(json.loads(VACUUM_RESULTS.read_text())),
    }


def main() -> None:
    text = PAGE.read_text()
    for name, block in blocks().items():
        text = put_block(text, MARK.format(name=name), block)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
