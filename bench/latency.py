"""From publish to arrival at 500 single publishes a second."""

from __future__ import annotations

import subprocess
import sys

from bench.processes import ROOT, BenchError, say, wait_until
from bench.sink import sinks
from bench.stand import Row, stand
from tests.ports import free_port

RATE, CONNECTIONS = 500, 8


def latency(quick: bool) -> Row:
    seconds = 5 if quick else 20
    with stand() as made, made.web():
        notes = made.folder / "published"
        with sinks(made.folder, port=free_port(), delay_seconds=0) as sink, made.worker():
            made.subscribe(sink.url)
            made.publish(100)
            wait_until(lambda: not made.left(), seconds=60, what="the warm-up")
            words = map(str, (made.http_port, RATE, seconds, CONNECTIONS, notes))
            command = [sys.executable, "-m", "bench.publisher", *words]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 40, check=False)
            if done.returncode:
                raise BenchError(f"the publisher failed: {done.stderr[-500:]}")
            wait_until(lambda: not made.left(), seconds=60, what="the last ack")
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
