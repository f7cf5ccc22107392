"""Measures how soon another machine takes over what one has held: `python -m bench.takeover`.

Two maintenance workers with a beat each run on a temporary PostgreSQL. The holder of each lease is killed, and frozen.
The seconds go to bench/results/takeover.json, from which `python -m bench.scale` writes docs/scale.md.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench import machine
from bench.__main__ import prepare_django
from bench.postgresql import postgresql
from bench.processes import ROOT, wait_until

RESULTS = ROOT / "bench" / "results" / "takeover.json"
WAIT_SECONDS = 60
SIGNALS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}
#: A process that holds what `{}` says until it is ended.
HOLDER = """
import django, time
django.setup()
from pushhub.leases import held
from pushhub.common.advisory import advisory_lock_tried
with {} as is_held:
    print(int(is_held), flush=True)
    time.sleep(600)
"""


@contextmanager
def holding(what: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds this lease or lock."""
    with subprocess.Popen([sys.executable, "-c", HOLDER.format(what)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline() == "0\n":
                raise RuntimeError(f"{what} is not free")
            yield process
        finally:
            process.kill()


def seconds_until(condition: Callable[[], Any], what: str) -> float:
    return round(wait_until(condition, seconds=WAIT_SECONDS, what=what, every=0.05), 1)


def measure(number: int) -> dict[str, float]:
    """Return the seconds of each take-over after this signal."""
    from bench.stand import stand
    from deliveries.models import CountingLease
    from deliveries.telemetry.counting.lease import LEASE
    from pushhub import beat
    from pushhub.common.advisory import advisory_lock_tried
    from pushhub.common.clock import utcnow
    from tests.workers import Worker

    figures: dict[str, float] = {}
    with stand() as deployment, ExitStack() as stack:
        os.environ.update(deployment.env | {"PUSHHUB_LOG_LEVEL": "INFO"})
        url = deployment.env["PUSHHUB_REDIS_URL"]

        def sent() -> Any:
            return deployment.redis.hgetall(beat.SENT_KEY)

        def beats() -> int:
            value = deployment.redis.get("ph:lease:beat")
            return int(value.split(b".")[-2]) if isinstance(value, bytes) else 0

        for name in "ab":
            stack.enter_context(Worker(url, name=f"maintenance-{name}", queue="maintenance", beat=True))
        wait_until(lambda: beats() and CountingLease.objects.exists(), seconds=60, what="the workers")

        # A task whose lease another process holds is dropped, until the lease has ended and beat sends it again.
        with holding("held('deliveries.segments_count')") as process:
            time.sleep(6)  # until no worker has the task any more
            row = CountingLease.objects.get()
            process.send_signal(number)
            changed = CountingLease.objects.filter(until__gt=row.until)
            figures["a timed task that comes every 5 s"] = seconds_until(changed.exists, "the task")

        # Spark's rollup has renewed its lease, and is heard of no more.
        CountingLease.objects.update(counter=CountingLease.Counter.SPARK, until=utcnow() + LEASE)
        mine = CountingLease.objects.filter(counter=CountingLease.Counter.EMBEDDED)
        figures["the rollup, by the embedded counter"] = seconds_until(mine.exists, "the counter")

        with holding("advisory_lock_tried('a job')") as process:
            process.send_signal(number)

            def is_free() -> bool:
                with advisory_lock_tried("a job") as is_held:
                    return is_held

            figures["`migrate`, and a run of the archive"] = seconds_until(is_free, "the lock")

        pid, before = beats(), sent()
        os.kill(pid, number)
        figures["beat"] = seconds_until(lambda: beats() not in (0, pid) and sent() != before, "another beat")
        os.kill(pid, signal.SIGCONT) if number == signal.SIGSTOP else None
    return figures


def main() -> None:
    at = machine.moment()["at"]
    with postgresql() as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        prepare_django(folder, on_postgresql=True)
        figures = {name: measure(number) for name, number in SIGNALS.items()}
    print(json.dumps(figures, indent=1))
    RESULTS.write_text(json.dumps({"at": at, "figures": figures}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
