"""CPU of every process of `make up` for each message, at steady rates of single publishes, and their memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.message import TOPIC
from bench.processes import ROOT, BenchError, Nginx, family, nginx, pss_mb, say, used_seconds, wait_until
from bench.stand import PUSHER, Row, push_config, subscription
from bench.up import SETTLE_SECONDS, running
from tests.ports import free_port

RATES = (20, 100, 500)
SECONDS, CONNECTIONS = 20, 8
#: A process is the first of these that its command line contains. What is left is the supervisor.
PROCESSES = {
    "webserver": "web",
    "grpcserver": "grpc",
    "push@": "push",
    "maintenance@": "maintenance",
    "monitor": "flower",
    "valkey-server": "redis",
    "redis-server": "redis",
}


def cpu_by_rate(quick: bool) -> Row:
    """Publish to one push subscription with tokens. What the processes take when idle is measured before."""
    seconds = 1 if quick else SECONDS
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-rates-") as folder, nginx(free_port()) as endpoint:
        port = free_port()
        settings = {"PUSHHUB_HTTP": f"127.0.0.1:{port}", "PUSHHUB_JOURNAL": f"{folder}/journal", "PUSHHUB_SPARK": "off"}
        with running(folder, **settings) as supervisor:
            _subscribe(port, endpoint.url)
            _publish(port, endpoint, rate=100, seconds=1 if quick else 3)
            time.sleep(0 if quick else SETTLE_SECONDS)
            idle = _spent(supervisor.pid, lambda: time.sleep(seconds))
            row = _keyed("idle_ms_cpu_a_second", idle, 1000 / seconds)
            for rate in RATES:
                spent = _spent(supervisor.pid, partial(_publish, port, endpoint, rate=rate, seconds=seconds))
                scale = 1e6 / (rate * seconds)
                row |= _keyed(f"cpu_us_a_message_at_{rate}", spent, scale)
                row[f"cpu_us_a_message_at_{rate}_without_idle"] = round((spent.total() - idle.total()) * scale)
            row |= _keyed("pss_mb", _pss(supervisor.pid), 1)
    say(f"  CPU by rate: {json.dumps(row, indent=2)}")
    return row


def _keyed(key: str, figures: Counter[str], scale: float) -> Row:
    """Return the sum, and the figure of each process under a key of its own."""
    return {key: round(figures.total() * scale)} | {
        f"{key}_{name}": round(figure * scale) for name, figure in figures.items()
    }


def _spent(supervisor: int, work: Callable[[], object]) -> Counter[str]:
    """Return the seconds of CPU by process while `work` runs, with those of children that have ended."""
    before = _cpu(supervisor)
    work()
    return _cpu(supervisor) - before


def _cpu(supervisor: int) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for name, pid in _members(supervisor):
        seconds[name] += used_seconds(pid)
    return seconds


def _pss(supervisor: int) -> Counter[str]:
    memory: Counter[str] = Counter()
    for name, pid in _members(supervisor):
        memory[name] += pss_mb(pid)
    return memory


def _members(supervisor: int) -> Iterator[tuple[str, int]]:
    """Yield the name and the id of each process."""
    for pid in family(supervisor):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        yield next((name for word, name in PROCESSES.items() if word in command), "supervisor"), pid


def _subscribe(port: int, url: str) -> None:
    def send(path: str, body: Row, method: str = "PUT") -> None:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        urllib.request.urlopen(request, timeout=30).close()

    send(TOPIC, {})
    send("projects/bench/serviceAccounts", {"accountId": PUSHER.partition("@")[0]}, "POST")
    send(subscription("bench"), {"topic": TOPIC, "pushConfig": push_config(url)})


def _publish(port: int, endpoint: Nginx, *, rate: int, seconds: int) -> None:
    """Publish at a steady rate, and wait until everything has arrived."""
    before = endpoint.received()
    with tempfile.NamedTemporaryFile() as notes:
        words = map(str, (port, rate, seconds, CONNECTIONS, notes.name))
        done = subprocess.run(
            [sys.executable, "-m", "bench.publisher", *words], cwd=ROOT, check=False, timeout=seconds + 40
        )
    if done.returncode:
        raise BenchError("the publisher failed")
    wait_until(lambda: endpoint.received() - before >= rate * seconds, seconds=60, what="the last push")
