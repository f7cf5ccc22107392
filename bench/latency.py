"""The latency from publish to arrival, at 500 single publishes per second."""

from __future__ import annotations

import subprocess
import sys

from bench.processes import ROOT, BenchError, say, wait_until
from bench.sink import sinks
from bench.stand import Row, stand
from tests.ports import free_port

RATE, CONNECTIONS = 500, 8


def latency(quick: bool) -> Row:
    seconds = 1 if quick else 20
    with stand() as deployment, deployment.web():
        notes = deployment.folder / "published"
        with sinks(deployment.folder, port=free_port(), delay_seconds=0) as sink, deployment.worker():
            deployment.subscribe(sink.url)
            deployment.publish(100)
            wait_until(lambda: not deployment.left(), seconds=60, what="the warm-up")
            words = map(str, (deployment.http_port, RATE, seconds, CONNECTIONS, notes))
            command = [sys.executable, "-m", "bench.publisher", *words]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 40, check=False)
            if done.returncode:
                raise BenchError(f"the publisher failed: {done.stderr[-500:]}")
            wait_until(lambda: not deployment.left(), seconds=60, what="the last ack")
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
    return row


def percentile(ordered: list[float], percent: int) -> float:
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)], 2)
