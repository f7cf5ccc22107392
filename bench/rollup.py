"""The rollup: attempts counted per second on Spark, by the embedded counter and in DuckDB, and what idling costs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import BenchError, family, process, rss_mb, say, wait_until
from bench.stand import Row, Stand, stand
from deliveries.models import MetricDay, MetricHour, MetricMinute, Segment
from deliveries.pipeline import needs
from deliveries.telemetry.counting import ledger
from deliveries.telemetry.counting.embedded import TURN_SECONDS, EmbeddedCounter
from deliveries.telemetry.counting.partials import partials_of
from deliveries.telemetry.counting.rollup import FILES_A_TASK
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.columns import event_schema
from pushhub.celery import SEAL_SECONDS
from tests.pipeline.quickjava import QUICK_SPARK

BEGIN = 1_795_219_200
SUBSCRIPTIONS, QUICK_SUBSCRIPTIONS = 50, 5
SEGMENT_ROWS, QUICK_SEGMENT_ROWS = 20_000, 1_000
#: Segments of one batch of Spark on two cores.
BATCH = 2 * FILES_A_TASK
#: Segments of 1, 4 and 16 million attempts, and what is counted before they are timed.
SIZES, QUICK_SIZES = (50, 200, 800), (2,)
WARM_SEGMENTS, QUICK_WARM_SEGMENTS = 150, BATCH
#: The first batches pay for the start of Java and its compiler: the steady rate leaves them out.
WARM_SHARE = 0.3
#: Turns of which the longest is the figure of `ledger_lock`.
TURNS = 10
#: Turns without a new segment; the maintenance worker has one every SEAL_SECONDS.
IDLE_TURNS = 100
#: Java's compiler goes on for some time after the last batch.
QUIET_SECONDS = 15

#: telemetry/counting/arrowsums.py in SQL.
DUCKDB = """
WITH events AS (
  SELECT parse_filename(filename) AS segment, project, coalesce(subscription, topic) AS resource, event,
    epoch_us("time") // 60000000 * 60 AS minute, coalesce(response_class, outcome) AS response_class,
    coalesce(response_code, 0) AS response_code, coalesce(host, '') AS host, bytes, latency_us,
    CASE WHEN latency_us IS NOT NULL THEN ceil(log2(greatest(latency_us, 1)) * 32)::INT END AS bucket
  FROM read_parquet($paths, filename = true)
), bucketed AS (
  SELECT segment, project, resource, event, minute, response_class, response_code, host, bucket, count(*) AS n,
    sum(bytes)::BIGINT AS bytes, sum(latency_us)::BIGINT AS latency_us_sum, max(latency_us) AS latency_us_max
  FROM events GROUP BY ALL
)
SELECT segment, project, resource, event, minute, response_class, response_code, host, sum(n)::BIGINT AS n,
  coalesce(sum(bytes), 0)::BIGINT AS bytes, coalesce(sum(latency_us_sum), 0)::BIGINT AS latency_us_sum,
  coalesce(max(latency_us_max), 0) AS latency_us_max, list(bucket) FILTER (bucket IS NOT NULL) AS buckets,
  list(n) FILTER (bucket IS NOT NULL) AS counts
FROM bucketed GROUP BY ALL
"""


def rollup(quick: bool) -> Row:
    """A backlog of segments, counted from the first to the last into SQLite."""
    if missing := needs.missing():
        raise BenchError(missing)
    segments, subscriptions = (BATCH + 2, QUICK_SUBSCRIPTIONS) if quick else (500, SUBSCRIPTIONS)
    rows = QUICK_SEGMENT_ROWS if quick else SEGMENT_ROWS
    with stand() as stood:
        folder = stood.folder / "segments"
        _write(folder, segments, rows=rows, subscriptions=subscriptions)
        idle = {"idle_seconds": 1} if quick else {"idle_seconds": 30, "quiet_seconds": QUIET_SECONDS}
        stood.env |= {"PUSHHUB_SPARK_CONF": QUICK_SPARK} if quick else {}
        spark = _spark(stood, segments, rows=rows, **idle)
        expected = _counted()
    with stand() as stood:
        folder = stood.folder / "segments"
        _write(folder, segments, rows=rows, subscriptions=subscriptions)
        duck = _duckdb(folder, rows=rows)
        if _counted() != expected:
            raise BenchError("the two engines do not agree")
    say(
        f"  rollup: Spark {spark['rate']:,.0f} attempts/s steady ({spark['whole']:,.0f} with its start,"
        f" {spark['rss']:.0f} MB), DuckDB {duck['rate']:,.0f} ({duck['query_rate']:,.0f} without SQLite);"
        f" an idle rollup takes {spark['idle']:.1f} % of a core"
    )
    return {
        "rollup_per_second": round(spark["rate"]),
        "rollup_per_second_with_start": round(spark["whole"]),
        "rollup_rss_mb": round(spark["rss"]),
        "rollup_attempts": segments * rows,
        "rollup_duckdb_per_second": round(duck["rate"]),
        "rollup_duckdb_query_per_second": round(duck["query_rate"]),
        "rollup_idle_percent_of_a_core": round(spark["idle"], 2),
    }


def rollup_sizes(quick: bool) -> Row:
    """Backlogs of 1, 4 and 16 times as many attempts: what a row costs must not depend on how many there are."""
    if missing := needs.missing():
        raise BenchError(missing)
    figures: Row = {}
    sizes, warm = (QUICK_SIZES, QUICK_WARM_SEGMENTS) if quick else (SIZES, WARM_SEGMENTS)
    rows = QUICK_SEGMENT_ROWS if quick else SEGMENT_ROWS
    for segments in sizes:
        with stand() as stood:
            _write(stood.folder / "segments", warm + segments, rows=rows)
            spark = _spark(stood, warm + segments, rows=rows, idle_seconds=0, warm=warm)
        figures[f"rollup_{segments * rows / 1e6:g}_million_per_second"] = round(spark["rate"])
    rates = list(figures.values())
    figures["rollup_cost_spread_percent"] = round((max(rates) / min(rates) - 1) * 100, 1)
    say(f"  rollup: {', '.join(f'{rate:,}' for rate in rates)} attempts/s at 1, 4 and 16 times the data")
    return figures


def embedded_counter(quick: bool) -> Row:
    """Backlogs of three sizes, counted by the embedded counter; then its turns with nothing to count."""
    figures: Row = {}
    for segments in QUICK_SIZES if quick else SIZES:
        with stand() as stood:
            folder = stood.folder / "segments"
            _write(folder, segments)
            counter = EmbeddedCounter(folder)
            began = time.monotonic()
            if counter.turn(seconds=600) != segments:
                raise BenchError("the embedded counter did not count everything")
            rate = segments * SEGMENT_ROWS / (time.monotonic() - began)
            spent = time.process_time()
            for _ in range(IDLE_TURNS):
                counter.turn()
            idle = (time.process_time() - spent) / (IDLE_TURNS * SEAL_SECONDS) * 100
        figures[f"embedded_counter_{segments * SEGMENT_ROWS / 1e6:g}_million_per_second"] = round(rate)
    say(f"  embedded counter: {rate:,.0f} attempts/s; with nothing to count its turns take {idle:.2f} % of a core")
    return figures | {
        "embedded_counter_per_second": round(rate),
        "embedded_counter_idle_percent_of_a_core": round(idle, 2),
    }


def ledger_lock(quick: bool) -> Row:
    """The sums of many subscriptions, added to SQLite: how long a transaction holds the write lock and a turn lasts."""
    subscriptions, segments = (100, 2) if quick else (10_000, 16)
    longest = 0.0
    real = ledger.only_writer

    @contextmanager
    def timed() -> Iterator[None]:
        nonlocal longest
        with real():
            began = time.monotonic()
            yield
        longest = max(longest, time.monotonic() - began)

    with stand() as stood:
        folder = stood.folder / "segments"
        _write(folder, segments, subscriptions=subscriptions)
        counter = EmbeddedCounter(folder)
        ledger.only_writer = timed
        turns: list[float] = []
        try:
            # The last one counts what is left.
            for limit in (*[TURN_SECONDS] * TURNS, 600.0):
                began = time.monotonic()
                counter.turn(seconds=limit)
                turns.append(time.monotonic() - began)
        finally:
            ledger.only_writer = real
        rows = MetricMinute.objects.count()
    say(
        f"  ledger: {subscriptions:,} subscriptions, {segments * SEGMENT_ROWS:,} events, {rows:,} rows of minutes in"
        f" {sum(turns):.1f} s; one transaction holds SQLite's write lock for {longest * 1000:.0f} ms at most, and the"
        f" longest of {TURNS} turns takes {max(turns[:-1]):.1f} s"
    )
    return {
        "ledger_lock_ms_max": round(longest * 1000),
        "ledger_seconds": round(sum(turns), 1),
        "embedded_counter_turn_seconds_max": round(max(turns[:-1]), 1),
    }


def _write(folder: Path, segments: int, *, rows: int = SEGMENT_ROWS, subscriptions: int = SUBSCRIPTIONS) -> None:
    """Write attempts of three hours, in order of time, with `rows` in each segment."""
    dice = np.random.default_rng(7)
    step = 10_800_000_000 // segments
    for number in range(segments):
        first = BEGIN * 10**6 + number * step
        times = first + np.sort(dice.integers(0, step, rows))
        path = files.segment_path(folder, f"bench-1-{first // 1000:013d}-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(dice, times, subscriptions), path, compression="zstd")


def _table(dice: Any, times: Any, count: int) -> pa.Table:
    """Return the attempts of one segment, by `count` subscriptions."""
    rows = len(times)
    subscriptions = dice.integers(0, count, rows)
    codes = dice.choice([204, 204, 204, 204, 204, 204, 204, 503, 404, 200], rows)
    classes = {200: "ack", 204: "ack", 503: "remote_server_5xx", 404: "remote_server_4xx"}
    columns = {
        "event": ["push"] * rows,
        "time": times,
        "project": ["bench"] * rows,
        "region": ["local"] * rows,
        "subscription": [f"projects/bench/subscriptions/s{number}" for number in subscriptions],
        "subscription_id": subscriptions,
        "topic_id": [1] * rows,
        "message_id": [str(number) for number in dice.integers(2**59, 2**60, rows)],
        "publish_time": times - 1000,
        "attempt": np.ones(rows),
        "outcome": ["ack" if code < 300 else "nack" for code in codes],
        "response_class": [classes[int(code)] for code in codes],
        "response_code": codes,
        "reason": [""] * rows,
        "latency_us": dice.lognormal(10, 1, rows).astype("int64"),
        "bytes": dice.integers(1, 4000, rows),
        "host": [f"host{number % 20}.example.com" for number in subscriptions],
        "push_window": [100] * rows,
        "backoff_ms": [0] * rows,
        "worker": ["bench"] * rows,
        "schema_version": [1] * rows,
    }
    schema = event_schema()
    arrays = [
        pa.array(columns[name]).cast(schema.field(name).type)
        if name in columns
        else pa.nulls(rows, schema.field(name).type)
        for name in schema.names
    ]
    return pa.table(arrays, schema=schema)


@contextmanager
def _runner(stood: Stand) -> Iterator[int]:
    command = [sys.executable, "-m", "pushhub.runtime.processes", "rollup"]
    with process(command, env=stood.env | {"PUSHHUB_SPARK_MASTER": "local[2]"}, is_new=True) as runner:
        yield runner.pid


def _spark(
    stood: Stand, segments: int, *, rows: int, idle_seconds: int, quiet_seconds: int = 0, warm: int | None = None
) -> dict[str, float]:
    """Count on Spark, then measure what idling costs. The steady rate leaves out the first `warm` segments."""
    began, peak = time.monotonic(), 0.0
    with _runner(stood) as pid:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.5):
                # A process of the family may end between the list and the look at it.
                with suppress(FileNotFoundError, ProcessLookupError):
                    peak = max(peak, rss_mb(*family(pid)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            wait_until(lambda: Segment.objects.count() >= segments, seconds=300, what="the rollup", every=0.25)
            whole = time.monotonic() - began
            time.sleep(quiet_seconds)
            before = _spent(pid)
            time.sleep(idle_seconds)
            idle = (_spent(pid) - before) / max(idle_seconds, 1) * 100
        finally:
            done.set()
            watcher.join()
    # The segments of a batch have the same time.
    at = sorted(moment.timestamp() for moment in Segment.objects.values_list("at", flat=True))
    start = at[(warm or max(int(len(at) * WARM_SHARE), BATCH)) - 1]
    later = sum(moment > start for moment in at)
    steady = later * rows / max(at[-1] - start, 0.001)
    return {"rate": steady, "whole": segments * rows / whole, "rss": peak, "idle": idle}


def _spent(pid: int) -> float:
    """Seconds of CPU, those of threads that have ended among them: Java's compiler has some."""
    seconds = 0.0
    for member in family(pid):
        # One that ends between the list and the look at it was short-lived.
        with suppress(psutil.NoSuchProcess):
            seconds += sum(psutil.Process(member).cpu_times()[:2])
    return seconds


def _duckdb(folder: Path, *, rows: int) -> dict[str, float]:
    """The same partial sums by DuckDB on two threads, into the same ledger."""
    paths = sorted(str(path) for path in (folder / files.SEALED).rglob("*.parquet"))
    queries, began = 0.0, time.monotonic()
    with duckdb.connect(config={"threads": 2}) as engine:
        for start in range(0, len(paths), BATCH):
            asked = time.monotonic()
            table = engine.sql(DUCKDB, params={"paths": paths[start : start + BATCH]}).to_arrow_table()
            queries += time.monotonic() - asked
            ledger.add_partials(partials_of(table), job="duckdb")
    total = len(paths) * rows
    return {"rate": total / (time.monotonic() - began), "query_rate": total / queries}


def _counted() -> list[Any]:
    """All sums of all tables, to compare."""
    key = ("resource", "event", "at", "response_class", "response_code", "host")
    fields = (*key, "count", "bytes", "latency_us_sum", "latency_us_max", "buckets")
    return [
        list(model._default_manager.order_by(*key).values_list(*fields))
        for model in (MetricMinute, MetricHour, MetricDay)
    ]
