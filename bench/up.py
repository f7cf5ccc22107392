"""`make up` and `pushhub emulator`: how long each takes to be ready, and how much memory all its processes hold."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.processes import ROOT, BenchError, clean_environment, family, pss_mb, say
from bench.stand import Row
from tests.ports import free_port

#: The time after which processes have finished their first timed tasks.
SETTLE_SECONDS = 15


def up(quick: bool) -> Row:
    """Start on an existing data folder, without the rollup, whose memory is mostly Java's."""
    starts, memory = [], 0.0
    with tempfile.TemporaryDirectory(prefix="pushhub-bench-up-") as folder:
        if not quick:
            with running(folder):
                pass
        for _ in range(1 if quick else 3):
            began = time.monotonic()
            with running(folder) as supervisor:
                starts.append(time.monotonic() - began)
                time.sleep(0 if quick else SETTLE_SECONDS)
                memory = sum(pss_mb(pid) for pid in family(supervisor.pid))
    say(f"  make up: {statistics.median(starts):.1f} s to be ready, {memory:.0f} MB")
    return {"up_start_seconds": round(statistics.median(starts), 1), "up_pss_mb": round(memory)}


def emulator(quick: bool) -> Row:
    """Start the emulator without a data folder, as test suites do."""
    command = [sys.executable, "-m", "pushhub.emulator", "--host-port=127.0.0.1:0"]
    starts, memory = [], 0.0
    for _ in range(1 if quick else 3):
        began = time.monotonic()
        with _ready(command, clean_environment(), "Server started, listening on") as process:
            starts.append(time.monotonic() - began)
            time.sleep(0 if quick else 2)
            memory = sum(pss_mb(pid) for pid in family(process.pid))
    say(f"  emulator: {statistics.median(starts):.1f} s to be ready, {memory:.0f} MB")
    return {"emulator_start_seconds": round(statistics.median(starts), 1), "emulator_pss_mb": round(memory)}


@contextmanager
def running(folder: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """Run the supervisor, with more settings if there are any, and yield when everything is ready."""
    environment = clean_environment() | {
        "PUSHHUB_DATA": folder,
        "PUSHHUB_JOURNAL": "off",
        **{f"PUSHHUB_{name}": f"127.0.0.1:{free_port()}" for name in ("HTTP", "GRPC", "FLOWER")},
        **more,
    }
    with _ready([sys.executable, "-m", "pushhub.runtime.supervisor"], environment, "PushHub is ready") as supervisor:
        yield supervisor


@contextmanager
def _ready(command: list[str], environment: dict[str, str], ready: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command, and wait for the line that says it is ready."""
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        _wait_until_ready(process, ready)
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _wait_until_ready(process: subprocess.Popen[str], ready: str) -> None:
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        if ready in line:
            return
        printed.append(line)
    raise BenchError(f"{process.args} did not become ready: " + "".join(printed)[-500:])
