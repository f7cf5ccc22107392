"""The rollup: attempts counted a second on Spark, the same in DuckDB, and what a stream with nothing to do takes."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.processes import BenchError, family, process, rss_mb, say, wait_until
from bench.stand import Row, Stand, stand
from deliveries.journal import files
from deliveries.journal.columns import event_schema
from deliveries.models import MetricDay, MetricHour, MetricMinute, Segment
from deliveries.pipeline import needs
from deliveries.pipeline.counting import ledger
from deliveries.pipeline.counting.rollup import FILES_A_BATCH, partials_of

BEGIN = 1_795_219_200
SUBSCRIPTIONS = 50
SEGMENT_ROWS = 20_000
#: The first batches pay for the start of Java and its compiler: the steady rate leaves them out.
WARM_SHARE = 0.3
#: Java's compiler goes on for some time after the last batch.
QUIET_SECONDS = 15

#: pipeline/counting/transforms.py in SQL.
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
    segments = 150 if quick else 500
    with stand() as made:
        folder = made.folder / "segments"
        _write(folder, segments)
        spark = _spark(made, segments, idle_seconds=10 if quick else 30)
        expected = _counted()
    with stand() as made:
        folder = made.folder / "segments"
        _write(folder, segments)
        duck = _duckdb(folder)
        if _counted() != expected:
            raise BenchError("the two engines do not agree")
    say(
        f"  rollup: Spark {spark['rate']:,.0f} attempts/s steady ({spark['whole']:,.0f} with its start,"
        f" {spark['rss']:.0f} MB), DuckDB {duck['rate']:,.0f} ({duck['query_rate']:,.0f} without SQLite);"
        f" an idle stream takes {spark['idle']:.1f} % of a core"
    )
    return {
        "rollup_per_second": round(spark["rate"]),
        "rollup_per_second_with_start": round(spark["whole"]),
        "rollup_rss_mb": round(spark["rss"]),
        "rollup_attempts": segments * SEGMENT_ROWS,
        "rollup_duckdb_per_second": round(duck["rate"]),
        "rollup_duckdb_query_per_second": round(duck["query_rate"]),
        "rollup_idle_percent_of_a_core": round(spark["idle"], 2),
    }


def _write(folder: Path, segments: int) -> None:
    """Attempts of three hours, in order of time."""
    dice = np.random.default_rng(7)
    rows = segments * SEGMENT_ROWS
    for number in range(segments):
        first = BEGIN * 10**6 + number * SEGMENT_ROWS * 10_800_000_000 // rows
        times = first + np.sort(dice.integers(0, SEGMENT_ROWS * 10_800_000_000 // rows, SEGMENT_ROWS))
        path = files.segment_path(folder, f"bench-1-{first // 1000:013d}-{number}")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(_table(dice, times), path, compression="zstd")


def _table(dice: Any, times: Any) -> pa.Table:
    subscriptions = dice.integers(0, SUBSCRIPTIONS, SEGMENT_ROWS)
    codes = dice.choice([204, 204, 204, 204, 204, 204, 204, 503, 404, 200], SEGMENT_ROWS)
    classes = {200: "ack", 204: "ack", 503: "remote_server_5xx", 404: "remote_server_4xx"}
    columns = {
        "event": ["push"] * SEGMENT_ROWS,
        "time": times,
        "project": ["bench"] * SEGMENT_ROWS,
        "region": ["local"] * SEGMENT_ROWS,
        "subscription": [f"projects/bench/subscriptions/s{number}" for number in subscriptions],
        "subscription_id": subscriptions,
        "topic_id": [1] * SEGMENT_ROWS,
        "message_id": [str(number) for number in dice.integers(2**59, 2**60, SEGMENT_ROWS)],
        "publish_time": times - 1000,
        "attempt": np.ones(SEGMENT_ROWS),
        "outcome": ["ack" if code < 300 else "nack" for code in codes],
        "response_class": [classes[int(code)] for code in codes],
        "response_code": codes,
        "reason": [""] * SEGMENT_ROWS,
        "latency_us": dice.lognormal(10, 1, SEGMENT_ROWS).astype("int64"),
        "bytes": dice.integers(1, 4000, SEGMENT_ROWS),
        "host": [f"host{number % 20}.example.com" for number in subscriptions],
        "push_window": [100] * SEGMENT_ROWS,
        "backoff_ms": [0] * SEGMENT_ROWS,
        "worker": ["bench"] * SEGMENT_ROWS,
        "schema_version": [1] * SEGMENT_ROWS,
    }
    schema = event_schema()
    arrays = [
        pa.array(columns[name]).cast(schema.field(name).type)
        if name in columns
        else pa.nulls(SEGMENT_ROWS, schema.field(name).type)
        for name in schema.names
    ]
    return pa.table(arrays, schema=schema)


@contextmanager
def _runner(made: Stand) -> Iterator[int]:
    command = [sys.executable, "-m", "pushhub.runtime.processes", "rollup"]
    with process(command, env=made.env | {"PUSHHUB_SPARK_MASTER": "local[2]"}) as runner:
        yield runner.pid


def _spark(made: Stand, segments: int, *, idle_seconds: int) -> dict[str, float]:
    began, peak = time.monotonic(), 0.0
    with _runner(made) as pid:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.5):
                peak = max(peak, rss_mb(*family(pid)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            wait_until(lambda: Segment.objects.count() >= segments, seconds=300, what="the rollup", every=0.25)
            whole = time.monotonic() - began
            time.sleep(QUIET_SECONDS)
            before = _spent(pid)
            time.sleep(idle_seconds)
            idle = (_spent(pid) - before) / idle_seconds * 100
        finally:
            done.set()
            watcher.join()
    # Segments of a batch are noted at the same time, within milliseconds.
    at = sorted(moment.timestamp() for moment in Segment.objects.values_list("at", flat=True))
    start = at[max(int(len(at) * WARM_SHARE), FILES_A_BATCH) - 1]
    later = sum(moment > start + 0.25 for moment in at)
    steady = later * SEGMENT_ROWS / max(at[-1] - start, 0.001)
    return {"rate": steady, "whole": segments * SEGMENT_ROWS / whole, "rss": peak, "idle": idle}


def _spent(pid: int) -> float:
    """Seconds of CPU, those of threads that have ended among them: Java's compiler has some."""
    return sum(sum(psutil.Process(one).cpu_times()[:2]) for one in family(pid))


def _duckdb(folder: Path) -> dict[str, float]:
    """The same partial sums by DuckDB on two threads, into the same ledger."""
    paths = sorted(str(path) for path in (folder / files.SEALED).rglob("*.parquet"))
    queries, began = 0.0, time.monotonic()
    with duckdb.connect(config={"threads": 2}) as engine:
        for start in range(0, len(paths), FILES_A_BATCH):
            asked = time.monotonic()
            table = engine.sql(DUCKDB, params={"paths": paths[start : start + FILES_A_BATCH]}).to_arrow_table()
            queries += time.monotonic() - asked
            ledger.partials_add(partials_of(table), job="duckdb")
    rows = len(paths) * SEGMENT_ROWS
    return {"rate": rows / (time.monotonic() - began), "query_rate": rows / queries}


def _counted() -> list[Any]:
    """All sums of all tables, to compare."""
    fields = (*ledger.KEY_FIELDS, *ledger.SUM_FIELDS)
    return [
        list(model._default_manager.order_by(*ledger.KEY_FIELDS).values_list(*fields))
        for model in (MetricMinute, MetricHour, MetricDay)
    ]
