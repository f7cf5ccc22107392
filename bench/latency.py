"""The latency from publish to arrival, at steady single publishes."""

from __future__ import annotations

import statistics
import subprocess
import sys

from bench.message import HELLO
from bench.processes import ROOT, BenchError, cpu_seconds, say, wait_until
from bench.sink import sinks
from bench.stand import Row, stand
from tests.ports import free_port

RATE, CONNECTIONS = 500, 8
#: The ordering keys of messages for the ordered subscription, each published to in turn.
KEYS = 1_000
ROUNDS = 3


def latency(quick: bool) -> Row:
    row, _ = _measure(RATE, seconds=1 if quick else 20)
    return row


def ordered_latency(quick: bool) -> Row:
    """Publish single messages with keys to an ordered subscription, and without to a plain one, in turns."""
    rate, seconds, rounds = (100, 1, 1) if quick else (250, 10, ROUNDS)
    p50s: dict[int, list[float]] = {0: [], KEYS: []}
    costs: dict[int, list[float]] = {0: [], KEYS: []}
    for _ in range(rounds):
        for keys in (0, KEYS):
            row, cost = _measure(rate, seconds=seconds, keys=keys)
            p50s[keys].append(row["latency_from_request_ms_p50"])
            costs[keys].append(cost)
    plain, ordered = statistics.median(costs[0]), statistics.median(costs[KEYS])
    return {
        "plain_latency_from_request_ms_p50": statistics.median(p50s[0]),
        "ordered_latency_from_request_ms_p50": statistics.median(p50s[KEYS]),
        "plain_cpu_us": round(plain),
        "ordered_cpu_us": round(ordered),
        "ordered_cpu_ratio": round(ordered / plain, 2),
    }


def _measure(rate: int, *, seconds: int, keys: int = 0) -> tuple[Row, float]:
    """Return the latencies, and the CPU of the worker and Redis in us a message."""
    with stand() as deployment, deployment.web():
        notes = deployment.folder / "published"
        with sinks(deployment.folder, port=free_port(), delay_seconds=0) as sink, deployment.worker() as worker:
            deployment.subscribe(sink.url, enableMessageOrdering=bool(keys))
            deployment.publish(100)
            wait_until(lambda: not deployment.left(), seconds=60, what="the warm-up")
            words = map(str, (deployment.http_port, rate, seconds, CONNECTIONS, notes, 1, len(HELLO), 1, keys))
            command = [sys.executable, "-m", "bench.publisher", *words]
            before = cpu_seconds(worker.pid, deployment.redis_pid)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 40, check=False)
            if done.returncode:
                raise BenchError(f"the publisher failed: {done.stderr[-500:]}")
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
            spent = cpu_seconds(worker.pid, deployment.redis_pid) - before
        arrived = sink.arrivals()
        published = [line.split() for line in notes.read_text().splitlines()]
    answered = sorted(max(arrived[name] - int(at), 0) / 1e6 for name, _, at in published)
    due = sorted((arrived[name] - int(at)) / 1e6 for name, at, _ in published)
    early = sum(arrived[name] < int(at) for name, _, at in published)
    row = {
        "latency_ms_p50": percentile(answered, 50),
        "latency_ms_p99": percentile(answered, 99),
        "latency_from_request_ms_p50": percentile(due, 50),
        "latency_from_request_ms_p99": percentile(due, 99),
        "latency_early_percent": round(100 * early / len(published), 1),
    }
    say(f"  latency: {row} of {len(published):,}")
    return row, spent / len(published) * 1e6


def percentile(ordered: list[float], percent: int) -> float:
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)], 2)
