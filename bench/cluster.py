"""Measures what a Redis Cluster gives and costs: `python -m bench.cluster`.

The same messages wait for 64 subscriptions, in one Redis and in Clusters of one, two and three primaries without
replicas; two push workers send them to an nginx. All of it shares the machine's cores, so the rates tell what a Cluster
costs, and the share of the busiest server what it gives. `python -m bench.scale` writes the figures into docs/scale.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.__main__ import prepare_django
from bench.processes import ROOT, Nginx, cpu_seconds, fork_modules, nginx, raise_file_limit, say, wait_until
from tests.ports import free_port

RESULTS = ROOT / "bench" / "results" / "cluster.json"
#: Cells, and primaries of a Cluster; none is a single Redis.
LAYOUTS = {
    "one Redis, one cell": (1, 0),
    "one Redis, 64 cells": (64, 0),
    "a Cluster of one": (64, 1),
    "a Cluster of two": (64, 2),
    "a Cluster of three": (64, 3),
}
SUBSCRIPTIONS, WORKERS = 64, 2


def measured(endpoint: Nginx, *, cells: int, primaries: int, deliveries: int) -> dict[str, Any]:
    """Drain `deliveries` and return the rate, and the CPU that each delivery took."""
    from bench.drain import middle_rate
    from bench.stand import stand

    with stand(cells=cells, primaries=primaries) as deployment, ExitStack() as stack:
        for number in range(SUBSCRIPTIONS):
            deployment.subscribe(endpoint.url, name=f"push-{number}")
        deployment.publish(deliveries // SUBSCRIPTIONS)
        servers = [deployment.redis_pid, *deployment.node_pids]
        before = {pid: cpu_seconds(pid) for pid in servers}
        from_ = endpoint.received()
        workers = [stack.enter_context(deployment.worker(f"bench{number}")) for number in range(WORKERS)]
        rate = middle_rate(endpoint, from_, deliveries, what="the drain")
        wait_until(lambda: not deployment.left(), seconds=120, what="the last ack", every=0.2)
        spent = {pid: cpu_seconds(pid) - before[pid] for pid in servers}
        return {
            "per_second": round(rate),
            "redis_us": round(sum(spent.values()) / deliveries * 1e6, 1),
            "busiest_us": round(max(spent.values()) / deliveries * 1e6, 1),
            "push_us": round(sum(cpu_seconds(worker.pid) for worker in workers) / deliveries * 1e6, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__)
    parser.add_argument("--turns", type=int, default=3, help="how often each is measured, in turns; the medians count")
    what = "how many are sent in each turn; less than 10,000 only try the harness"
    parser.add_argument("--deliveries", type=int, default=128_000, help=what)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file for the figures (default: %(default)s)")
    arguments = parser.parse_args()
    raise_file_limit()
    if arguments.deliveries < 10_000:
        fork_modules()
    about = machine.moment()
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in LAYOUTS}
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder, nginx(free_port()) as endpoint:
        prepare_django(folder)
        for _ in range(arguments.turns):
            for name, (cells, primaries) in LAYOUTS.items():
                row = measured(endpoint, cells=cells, primaries=primaries, deliveries=arguments.deliveries)
                say(f"  {name}: {row}")
                turns[name].append(row)
    figures = {name: {key: median(row[key] for row in rows) for key in rows[0]} for name, rows in turns.items()}
    text = json.dumps({**about, "turns": arguments.turns, "figures": figures}, indent=1)
    print(text)
    arguments.out.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
