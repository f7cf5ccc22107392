"""Measures whether PostgreSQL's vacuum keeps up with a steady load: `python -m bench.vacuum`.

All processes run on a temporary PostgreSQL with its default settings. Batches of 100 messages go to a topic with one
push subscription, at the same rate for an hour. Every 10 s it notes publish times, sizes of tables and indexes, dead
rows, autovacuum, and the CPU of each part. With `--name` the figures go to bench/results/vacuum.json, from which
`python -m bench.scale` writes docs/scale.md, and docs/vacuum.svg shows the longest run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import IO, Any

from bench import machine
from bench.__main__ import prepare_django
from bench.capacity import Meter, database_rows, running
from bench.drawing import Lines, Points, draw_lines
from bench.layouts import MessagesByTime, lay_out
from bench.message import HELLO, topic_names
from bench.postgresql import postgresql
from bench.processes import ROOT, BenchError, Nginx, fork_modules, say, wait_until

RESULTS = ROOT / "bench" / "results" / "vacuum.json"
PICTURE = ROOT / "docs" / "vacuum.svg"
BATCH, CONNECTIONS = 100, 32
#: The push window opens meanwhile, and the figures begin afterwards.
WARM_SECONDS, QUICK_WARM_SECONDS = 10, 2
#: One in so many messages goes to the subscription whose endpoint is away, from the start of the figures on.
BEHIND_SHARE = 100
AWAY = "projects/bench/topics/away"
#: Nothing listens there.
AWAY_URL = "http://127.0.0.1:1024/"
TABLES = ("message", "delivery")
PARTS = ("web", "push", "maintenance", "redis", "postgresql", "pgbouncer")
#: With all partitions of a table, whose names begin with its own.
_SIZES = """
SELECT sum(pg_table_size(relid)) / 1e6, sum(pg_indexes_size(relid)) / 1e6, sum(n_live_tup), sum(n_dead_tup),
 sum(autovacuum_count) FROM pg_stat_user_tables WHERE relname LIKE 'deliveries_{}%'
"""
_VACUUMED = re.compile(
    r'automatic (?:aggressive )?vacuum of table "[\w.]*\.deliveries_(message|delivery)\w*"'
    r".*?CPU: user: ([\d.]+) s, system: ([\d.]+) s, elapsed: ([\d.]+) s",
    re.DOTALL,
)
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Run:
    """What is measured: messages a second, for how long, and where they lie."""

    rate: int
    seconds: float
    every: float
    topics: int
    behind: int
    layout: str
    storage: str
    pooled: bool
    settings: str


class Recorder:
    """Notes the figures of the time since its last sample."""

    def __init__(self, meter: Meter, endpoint: Nginx, notes: IO[str], log: Path, *, received: int) -> None:
        self._meter, self._endpoint, self._notes, self._log = meter, endpoint, notes, log
        self._log_start = log.stat().st_size
        self._published = 0
        self._waits: list[float] = []
        self._received = received
        self._began = self._at = time.monotonic()
        self._read = meter.read()
        self._steal = machine.Steal()
        self.samples: list[Figures] = []

    def sample(self) -> None:
        now, read = time.monotonic(), self._meter.read()
        waits = [(int(answered) - int(due)) / 1e6 for _, due, answered in map(str.split, self._notes)]
        count = len(waits) * BATCH
        if not count:
            raise BenchError("nothing was published since the last sample")
        self._published += count
        self._waits += waits
        spent = {name: (read[name] - self._read[name]) / count for name in read}
        push_us = sum(figure for name, figure in spent.items() if name.startswith("push"))
        figures: Figures = {
            "at_s": round(now - self._began, 1),
            "per_second": round(count / (now - self._at)),
            **_percentiles(waits),
            **{f"{part}_us": round(spent.get(f"{part}_us", 0), 1) for part in PARTS if part != "push"},
            "push_us": round(push_us, 1),
            "wal_bytes": round(spent["wal_bytes"]),
            # Those of the subscription whose endpoint is away are not counted.
            "waiting": self._published - (self._endpoint.received() - self._received),
            "steal_percent": self._steal.percent(),
        }
        for table in TABLES:
            [(size, indexes, live, dead, vacuums)] = database_rows(_SIZES.format(table))
            figures |= {
                f"{table}_mb": round(float(size), 1),
                f"{table}_index_mb": round(float(indexes), 1),
                f"{table}_live": int(live),
                f"{table}_dead": int(dead),
                f"{table}_vacuums": int(vacuums),
            }
        [(figures["vacuuming"],)] = database_rows("SELECT count(*) FROM pg_stat_progress_vacuum")
        self._at, self._read, self._steal = now, read, machine.Steal()
        self.samples.append(figures)

    def figures(self) -> Figures:
        """Return those of the whole time, with the time and the CPU of the vacuums that ended."""
        first, last = self.samples[0], self.samples[-1]
        wholes = {name: sum(sample[name] for sample in self.samples) / len(self.samples) for name in first}
        figures = {name: round(wholes[name], 1) for name in (*(f"{part}_us" for part in PARTS), "wal_bytes")}
        figures["others_us"] = round(sum(wholes[f"{part}_us"] for part in PARTS if part != "postgresql"), 1)
        figures |= {"per_second": round(self._published / last["at_s"]), **_percentiles(self._waits)}
        figures["steal_percent"] = round(wholes["steal_percent"], 1)
        for name in ("waiting", *(f"{table}_{what}" for table in TABLES for what in ("mb", "index_mb", "dead"))):
            figures[f"{name}_most"] = max(sample[name] for sample in self.samples)
        with self._log.open() as log:
            log.seek(self._log_start)
            vacuums = [(name, *map(float, seconds)) for name, *seconds in _VACUUMED.findall(log.read())]
        cpu = sum(user + system for _, user, system, _ in vacuums)
        figures["vacuum_us"] = round(cpu * 1e6 / self._published, 1)
        for table in TABLES:
            took = [elapsed for name, *_, elapsed in vacuums if name == table]
            figures |= {f"{table}_vacuums": len(took), f"{table}_vacuum_s_most": max(took, default=0)}
        return figures


def quarters(samples: Sequence[Figures]) -> list[float]:
    """Return the middle p99 of each quarter of a run's samples."""
    size = max(len(samples) // 4, 1)
    return [
        round(median(each["p99_ms"] for each in samples[start : start + size]), 1) for start in range(0, 4 * size, size)
    ]


def _percentiles(waits: list[float]) -> Figures:
    cuts = quantiles(waits, n=100)
    return {"p50_ms": round(cuts[49], 1), "p99_ms": round(cuts[98], 1)}


@contextmanager
def publishing(port: int, run: Run, seconds: float) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Publish for so long; yield the process and its notes."""
    with tempfile.NamedTemporaryFile("r") as notes:
        per_second = max(run.rate // BATCH, 1)
        words = (
            port,
            per_second,
            int(seconds),
            min(CONNECTIONS, per_second),
            notes.name,
            BATCH,
            len(HELLO),
            run.topics,
        )
        process = subprocess.Popen([sys.executable, "-m", "bench.publisher", *map(str, words)], cwd=ROOT)
        try:
            yield process, notes
        finally:
            process.kill()
            process.wait()


def measure(run: Run) -> dict[str, Any]:
    """Return the figures of a run, and its samples."""
    from django.core.management import call_command

    from bench.consolerows import execute, insert_waiting
    from pushhub.common.databases import SESSION_SETTINGS
    from pushhub.leases import held
    from subscriptions.models import Subscription

    call_command("migrate", verbosity=0)
    # Behind a pooler, sessions have these only if their role has them (docs/settings.md).
    for name, value in SESSION_SETTINGS.items():
        execute(f"ALTER ROLE CURRENT_USER SET {name} = '{value}'", [])
    for setting in ["log_autovacuum_min_duration=0", *run.settings.split()]:
        execute(f"ALTER SYSTEM SET {setting}", [])
    execute("SELECT pg_reload_conf()", [])
    step = lay_out(run.layout, run.storage)
    with ExitStack() as stack:
        deployment, endpoint, meter = stack.enter_context(running(1))
        folder = Path(database_rows("SHOW data_directory")[0][0]).parent
        if run.pooled:
            meter = Meter(deployment, {**meter.pids, "pgbouncer": int((folder / "pooler" / "pid").read_text())})
        for number, topic in enumerate(topic_names(run.topics)[1:]):
            deployment.subscribe(endpoint.url, name=f"topic-{number}", topic=topic)
        if run.behind:
            away = Subscription.objects.get(pk=deployment.subscribe(AWAY_URL, name="away", topic=AWAY))
            insert_waiting(run.behind, topic=away.topic_id, deliveries=[f"{away.pk}, 'local', 0, NULL, ''"])
            execute("ANALYZE", [])
        if isinstance(step, MessagesByTime):
            stack.enter_context(held("deliveries.messages_sweep"))
        received = endpoint.received()
        warm_seconds = WARM_SECONDS if run.seconds >= 60 else QUICK_WARM_SECONDS
        with publishing(deployment.http_port, run, warm_seconds) as (process, _):
            while process.poll() is None:
                time.sleep(1)
                step()
        count = max(run.rate // BATCH, 1) * BATCH * warm_seconds
        wait_until(lambda: endpoint.received() - received >= count, seconds=120, what="the warm-up")
        received = endpoint.received()
        with publishing(deployment.http_port, run, run.seconds + run.every) as (process, notes):
            wait_until(lambda: Path(notes.name).stat().st_size, seconds=10, what="the first publish")
            recorder = Recorder(meter, endpoint, notes, folder / "log", received=received)
            began, samples = time.monotonic(), round(run.seconds / run.every)
            for number in range(1, samples + 1):
                while (left := began + number * run.every - time.monotonic()) > 0:
                    if run.behind:
                        deployment.publish(run.rate // BEHIND_SHARE, topic=AWAY)
                    step()
                    time.sleep(min(left, 1))
                if process.poll():
                    raise BenchError("the publisher failed")
                recorder.sample()
                _report(number, samples, recorder.samples[-1])
    return {"figures": recorder.figures(), "samples": recorder.samples}


def _report(number: int, samples: int, sample: Figures) -> None:
    if number == 1:
        say(
            "sample        s  msg/s   p50   p99 waiting"
            " | messages MB, index, dead  | deliveries MB, index, dead | vacuums | PostgreSQL, µs"
        )
    messages, deliveries = (
        f"{sample[f'{table}_mb']:7,.0f} {sample[f'{table}_index_mb']:7,.0f} {sample[f'{table}_dead']:9,}"
        for table in TABLES
    )
    vacuums = "+".join(str(sample[f"{table}_vacuums"]) for table in TABLES) + ("*" if sample["vacuuming"] else "")
    say(
        f"{number:4}/{samples} {sample['at_s']:6} {sample['per_second']:6,} {sample['p50_ms']:5} {sample['p99_ms']:5}"
        f" {sample['waiting']:7,} | {messages} | {deliveries} | {vacuums} | {sample['postgresql_us']}"
    )


def panels(result: dict[str, Any]) -> list[Lines]:
    """Return what a run's picture shows over its time."""
    samples, figures = result["samples"], result["figures"]
    end = samples[-1]["at_s"]
    labels = [f"{round(end * part / 4 / 60, 1):g} min" for part in range(5)]

    def lines(names: dict[str, str]) -> dict[str, Points]:
        return {text: [(sample["at_s"] / end, sample[name]) for sample in samples] for text, name in names.items()}

    sizes = {
        f"{table} {what}": f"{table}_{name}"
        for table in TABLES
        for what, name in {"table": "mb", "indexes": "index_mb"}.items()
    }
    return [
        Lines(
            f"ms that a publish of {BATCH} messages takes",
            f"in all: p50 {figures['p50_ms']} and p99 {figures['p99_ms']}",
            lines({"p50": "p50_ms", "p99": "p99_ms"}),
            labels,
            1,
            10_000,
        ),
        Lines("MB of tables and indexes", "", lines(sizes), labels, 1, 10_000),
        Lines(
            "dead rows",
            f"{figures['message_vacuums']:.0f} vacuums of messages, {figures['delivery_vacuums']:.0f} of deliveries",
            lines({table: f"{table}_dead" for table in TABLES}),
            labels,
            1_000,
            1e7,
        ),
        Lines(
            "µs of CPU a message",
            f"PostgreSQL: {figures['postgresql_us']}, of which vacuums take {figures['vacuum_us']}",
            lines({part: f"{part}_us" for part in ("web", "push", "redis", "postgresql")}),
            labels,
            1,
            1_000,
        ),
    ]


def store(name: str, result: dict[str, Any]) -> None:
    """Add a run to the results, and draw the longest one."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results[name] = result
    RESULTS.write_text(
        "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(run)}" for key, run in results.items()) + "\n}\n"
    )
    PICTURE.write_text(draw(results))


def draw(results: Mapping[str, Any]) -> str:
    """Return the picture of the longest run."""
    return draw_lines(panels(max(results.values(), key=lambda run: run["run"]["seconds"])))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.vacuum", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60, help="(default: 60; less than one only tries the harness)")
    parser.add_argument("--rate", type=int, default=5000, help="messages a second (default: 5000)")
    parser.add_argument("--every", type=float, default=10, help="seconds between samples (default: 10)")
    parser.add_argument("--topics", type=int, default=1, help="the messages go to so many topics in turn (default: 1)")
    parser.add_argument(
        "--behind",
        type=int,
        default=0,
        help="so many messages wait for an endpoint that is away, and 1 %% more than the rate",
    )
    parser.add_argument("--pgbouncer", action="store_true", help="in transaction mode, in front of PostgreSQL")
    parser.add_argument(
        "--partitions", default="plain", metavar="LAYOUT", help="hash:N or time:SECONDS (bench/layouts.py)"
    )
    parser.add_argument("--storage", default="", help="storage parameters of both tables, such as fillfactor=80")
    parser.add_argument("--settings", default="", help="settings of PostgreSQL, such as 'autovacuum_naptime=10s'")
    parser.add_argument("--name", help="the name under which the figures are kept")
    arguments = parser.parse_args()
    if arguments.minutes < 1:
        fork_modules()
    run = Run(
        arguments.rate,
        arguments.minutes * 60,
        arguments.every,
        arguments.topics,
        arguments.behind,
        arguments.partitions,
        arguments.storage,
        arguments.pgbouncer,
        arguments.settings,
    )
    circumstances = machine.moment()
    with postgresql(pooled=run.pooled) as url, tempfile.TemporaryDirectory(prefix="pushhub-bench-") as folder:
        os.environ["PUSHHUB_DATABASE_URL"] = url
        prepare_django(folder, on_postgresql=True)
        measured = measure(run)
    print(json.dumps(measured["figures"], indent=1))
    if arguments.name:
        from dataclasses import asdict

        store(arguments.name, {**circumstances, "run": asdict(run), **measured})


if __name__ == "__main__":
    main()
