"""Measures what a message costs each part of PushHub on PostgreSQL, for `pushhub capacity` and docs/scale.md.

    python -m bench.capacity            measures the costs, and writes pushhub/capacity/costs.json
    python -m bench.capacity --check    measures what 1, 2 and 4 push workers do, beside what the model says

`python -m bench.scale` writes the tables of the page. Costs are linear in publish requests, messages, deliveries, and
the kilobytes of both. Five loads, which differ in one of these each, give the five costs of each part.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import machine
from bench.__main__ import prepare_django
from bench.message import HELLO, Publisher
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, family, fork_modules, nginx, say, used_seconds, wait_until
from pushhub.capacity.model import PARTS, PATH, Load

CHECKED = ROOT / "bench" / "results" / "capacity.json"
CONNECTIONS = 32
#: The numbers of push workers with which the model is compared, and how many messages may wait for them.
WORKERS, MOST_WAITING = (1, 2, 4), 5_000
SECONDS, WARM_SECONDS = 15, 4
#: Each takes about half of two cores: parts that are idle have smaller batches, which cost more.
LOADS = {
    "plain": Load(4000, size=len(HELLO), batch=100),
    "single": Load(1500, size=len(HELLO)),
    "wide": Load(400, size=len(HELLO), batch=100, fanout=10),
    "large": Load(800, size=10_000, batch=100),
    "wide_large": Load(200, size=10_000, batch=100, fanout=10),
}
#: What is measured besides the µs of CPU of each part.
FLOWS = ("http_bytes", "redis_bytes", "wal_bytes", "wal_flushes")
Figures = dict[str, float]


@dataclass
class Meter:
    """Reads counters of the stand's processes, database, Redis and of the loopback."""

    deployment: Any
    pids: Mapping[str, int]

    def read(self) -> Figures:
        cpu = {f"{part}_us": used_seconds(*family(pid)) * 1e6 for part, pid in self.pids.items()}
        info = self.deployment.redis.info("stats")
        [(wal_bytes, wal_flushes)] = database_rows("SELECT pg_current_wal_lsn() - '0/0', wal_sync FROM pg_stat_wal")
        return cpu | {
            "http_bytes": _loopback_bytes(),
            "redis_bytes": info["total_net_input_bytes"] + info["total_net_output_bytes"],
            "wal_bytes": float(wal_bytes),
            "wal_flushes": float(wal_flushes),
        }


def database_rows(statement: str) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def _loopback_bytes() -> float:
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return float(line.split()[1])


def postmaster() -> int:
    """Return the id of PostgreSQL's first process."""
    [(folder,)] = database_rows("SHOW data_directory")
    return int(Path(folder, "postmaster.pid").read_text().split()[0])


@contextmanager
def running(fanout: int, *, workers: int = 1, **settings: str) -> Iterator[tuple[Any, Any, Meter]]:
    """Run all processes, with `fanout` push subscriptions; yield the stand, the endpoint and the meter."""
    from bench.stand import stand
    from tests.ports import free_port

    with ExitStack() as stack:
        endpoint = stack.enter_context(nginx(free_port()))
        deployment = stack.enter_context(stand())
        deployment.env.update(settings)
        web = stack.enter_context(deployment.web())
        maintenance = stack.enter_context(deployment.maintenance())
        push = [stack.enter_context(deployment.worker(f"bench{number}")).pid for number in range(workers)]
        for number in range(fanout):
            deployment.subscribe(endpoint.url, name=f"bench-{number}")
        pids = {"web": web.pid, "maintenance": maintenance.pid, "redis": deployment.redis_pid}
        pids |= {"postgresql": postmaster()} | {f"push{number}": pid for number, pid in enumerate(push)}
        yield deployment, endpoint, Meter(deployment, pids)


def _publish(deployment: Any, load: Load, seconds: float) -> int:
    """Publish at the load's rate; return the number of messages."""
    rate = int(load.rate / load.batch)
    connections = min(CONNECTIONS, rate)  # the server closes one that sends nothing for 10 s
    with tempfile.NamedTemporaryFile() as notes:
        words = map(str, (deployment.http_port, rate, int(seconds), connections, notes.name, load.batch, load.size))
        command = [sys.executable, "-m", "bench.publisher", *words]
        if subprocess.run(command, cwd=ROOT, check=False, timeout=seconds + 60).returncode:
            raise BenchError("the publisher failed")
    return rate * int(seconds) * load.batch


def measure(load: Load, *, seconds: float, warm_seconds: float) -> Figures:
    """Return what a message of this load costs: µs of CPU by part, and bytes."""
    with running(int(load.fanout)) as (deployment, endpoint, meter):
        _publish(deployment, load, warm_seconds)
        wait_until(lambda: not deployment.left(), seconds=60, what="the warm-up")
        before, received = meter.read(), endpoint.received()
        count = _publish(deployment, load, seconds)
        wait_until(lambda: endpoint.received() - received >= count * load.fanout, seconds=60, what="the last push")
        wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
        after = meter.read()
    spent = {name: (after[name] - before[name]) / count for name in after}
    spent["push_us"] = sum(spent.pop(name) for name in list(spent) if name.startswith("push"))
    say(f"  {load}: " + ", ".join(f"{name} {figure:,.1f}" for name, figure in spent.items()))
    return spent


def solve(measured: Mapping[str, Figures]) -> dict[str, Figures]:
    """Return the costs of each part by unit, from what a message of each load costs. Less than nothing is noise."""
    return {f"{part}_us": _solve(measured, f"{part}_us") for part in PARTS} | {
        flow: _solve(measured, flow) for flow in FLOWS
    }


def _solve(measured: Mapping[str, Figures], name: str) -> Figures:
    plain, single, wide, large, wide_large = (measured[load][name] for load in LOADS)
    more = LOADS["wide"].fanout - LOADS["plain"].fanout
    kilobytes = (LOADS["large"].size - LOADS["plain"].size) / 1000
    least_kb = LOADS["plain"].size / 1000
    request = (single - plain) / (1 - 1 / LOADS["plain"].batch)
    delivered_kb = ((wide_large - wide) - (large - plain)) / more / kilobytes
    published_kb = (large - plain) / kilobytes - delivered_kb
    delivery = (wide - plain) / more - delivered_kb * least_kb
    costs = {
        "request": request,
        "message": plain - request / LOADS["plain"].batch - delivery - (published_kb + delivered_kb) * least_kb,
        "delivery": delivery,
        "published_kb": published_kb,
        "delivered_kb": delivered_kb,
    }
    return {unit: round(max(cost, 0), 3) for unit, cost in costs.items()}


def idle_calls(count: int) -> Figures:
    """Return the µs of Redis' CPU of the calls by which a worker without messages asks a cell."""
    from bench.stand import stand
    from deliveries.backlog.default import default_backlog

    with stand() as deployment:
        backlog, costs = default_backlog(), {}
        for name, call in {
            "look": lambda: backlog.look("local", worker="bench", leases=[""]),
            "beat": lambda: backlog.beat("bench", regions=["local"]),
        }.items():
            call()
            before = used_seconds(deployment.redis_pid)
            for _ in range(count):
                call()
            costs[name] = round((used_seconds(deployment.redis_pid) - before) * 1e6 / count, 1)
    return costs


def stored_bytes(count: int) -> Figures:
    """Return the bytes of a message without its data, and of a delivery, in PostgreSQL with all indexes."""
    from bench.stand import stand
    from deliveries.models import Delivery, Message

    with stand() as deployment:
        deployment.subscribe("")
        sizes = []
        for wait in (0, count):
            deployment.publish(wait)
            tables = [model._meta.db_table for model in (Message, Delivery)]
            sizes.append([database_rows(f"SELECT pg_total_relation_size('{table}')")[0][0] for table in tables])
    message, delivery = ((full - empty) / count for empty, full in zip(*sizes, strict=True))
    return {"message": round(message - len(HELLO)), "delivery": round(delivery)}


def check(workers: int, *, seconds: float, warm_seconds: float) -> dict[str, Any]:
    """Publish as fast as this machine pushes; return messages a second and what each part and the load took for one."""
    load = LOADS["plain"]
    with running(1, workers=workers) as (deployment, endpoint, meter):
        publisher = Publisher(deployment.http_port, load.batch)
        published, first = 0, endpoint.received()

        def flow(until: float) -> None:
            nonlocal published
            while time.monotonic() < until:
                if published - (endpoint.received() - first) < MOST_WAITING:
                    publisher.publish()
                    published += load.batch
                else:
                    time.sleep(0.002)

        flow(time.monotonic() + warm_seconds)
        before, received, began, own = meter.read(), endpoint.received(), time.monotonic(), used_seconds(os.getpid())
        idle = _idle_seconds()
        flow(began + seconds)
        after, count, took = meter.read(), endpoint.received() - received, time.monotonic() - began
        own, idle = used_seconds(os.getpid()) - own, _idle_seconds() - idle
        endpoint_us = used_seconds(*family(endpoint.pid)) * 1e6 / (endpoint.received() - first)
    costs = {name: (after[name] - before[name]) / count for name in after if name.endswith("_us")}
    costs["push_us"] = sum(costs.pop(name) for name in list(costs) if name.startswith("push"))
    return {
        "workers": workers,
        "per_second": round(count / took),
        "load_us": round(own * 1e6 / count + endpoint_us, 1),
        "idle_percent": round(100 * idle / took / (os.cpu_count() or 1)),
        "us": {part: round(costs[f"{part}_us"], 1) for part in PARTS},
    }


def _idle_seconds() -> float:
    """Return how long the machine's cores have been idle in all."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.capacity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the model with runs of 1, 2 and 4 push workers")
    parser.add_argument("--quick", action="store_true", help="small counts, to try the harness: writes no results")
    arguments = parser.parse_args()
    if arguments.quick:
        fork_modules()
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ |= {"PUSHHUB_DATABASE_URL": url}
        prepare_django(folder, on_postgresql=True)
        results = (_check if arguments.check else _measure)(quick=arguments.quick)
    print(json.dumps(results, indent=1))
    if not arguments.quick:
        (CHECKED if arguments.check else PATH).write_text(json.dumps(results, indent=1) + "\n")


def _measure(*, quick: bool) -> dict[str, Any]:
    messages = {name: measure(load, **_durations(quick=quick)) for name, load in LOADS.items()}
    return _circumstances() | {
        "costs": solve(messages),
        "idle_us": idle_calls(100 if quick else 5000),
        "stored_bytes": stored_bytes(2000 if quick else 50_000),
    }


def _check(*, quick: bool) -> dict[str, Any]:
    rounds = WORKERS[1:2] if quick else WORKERS
    return _circumstances() | {"runs": [check(workers, **_durations(quick=quick)) for workers in rounds]}


def _durations(*, quick: bool) -> dict[str, float]:
    return {"seconds": 1, "warm_seconds": 1} if quick else {"seconds": SECONDS, "warm_seconds": WARM_SECONDS}


def _circumstances() -> dict[str, Any]:
    facts = machine.facts()
    return {name: facts[name] for name in ("cpu", "cores", "kernel", "python", "redis_server", "postgresql")} | (
        machine.moment()
    )


if __name__ == "__main__":
    main()
