"""Generated segments, and the metrics expected of them, which plain Python adds up independently of Spark."""

from __future__ import annotations

import math
import os
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from deliveries.models import Metric, MetricDay, MetricHour, MetricMinute, Segment
from deliveries.telemetry.journal import files
from deliveries.telemetry.journal.columns import Rows, table_of

#: 2026-11-21T04:57:00Z. The segments begin here and reach into the next hour, some of them into the next day.
BEGIN = 1_795_237_020
FIRST_ID = 911_742_875_595_837_440
SUBSCRIPTIONS = ("alpha", "beta", "gamma")
ANSWERS = ((200, ""), (200, ""), (200, ""), (204, ""), (404, ""), (503, ""), (0, "connect_failed"))

SPANS = [(MetricMinute, 60), (MetricHour, 3600), (MetricDay, 86400)]

#: How often random trials are repeated: by the variable of this name, more often than in each run of all tests.
TRIALS = int(os.environ.get("TRIALS", "1"))

Truth = dict[tuple[Any, ...], tuple[Any, ...]]


def segment_name(number: int) -> str:
    return f"host-1-{BEGIN * 1000 + number * 5000:013d}-{number}"


def random_events(dice: random.Random, count: int, *, at: int) -> list[Rows]:
    """Return `count` random attempts per subscription in the 90 seconds after `at`, and one publish and one pull."""
    parts = []
    for subscription in SUBSCRIPTIONS:
        answers = [dice.choice(ANSWERS) for _ in range(count)]
        columns = {
            "time": [int((at + dice.random() * 90) * 1e6) for _ in range(count)],
            "message_id": [str(FIRST_ID + dice.randrange(2**30)) for _ in range(count)],
            "attempt": [1] * count,
            "outcome": ["ack" if code in (200, 204) else "nack" for code, _ in answers],
            "response_code": [code for code, _ in answers],
            "reason": [reason for _, reason in answers],
            "latency_us": [int(dice.lognormvariate(10, 2)) for _ in range(count)],
            "bytes": [dice.randrange(2000) for _ in range(count)],
        }
        name = f"projects/p/subscriptions/{subscription}"
        shared = {"event": "push", "project": "p", "subscription": name, "subscription_id": 1, "host": "example.com"}
        parts.append(Rows(count, columns, shared))
    moment = int(at * 1e6)
    publish = {"event": "publish", "project": "p", "topic": "projects/p/topics/t", "time": moment, "bytes": 10}
    pull = {"event": "pull", "project": "p", "subscription": "projects/p/subscriptions/pulled", "time": moment}
    parts.append(Rows(1, {"message_id": [str(FIRST_ID)]}, {**publish, "outcome": "accepted", "response_code": 0}))
    parts.append(Rows(1, {"message_id": [str(FIRST_ID)]}, {**pull, "outcome": dice.choice(["ack", "nack"])}))
    return parts


def write_segment(folder: Path, number: int, parts: Sequence[Rows]) -> Path:
    """Write a sealed segment as the journal does: under a hidden name first, and then renamed."""
    path = files.segment_path(folder, segment_name(number))
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table_of(parts), hidden)
    return hidden.rename(path)


def make_segments(folder: Path, numbers: Iterable[int], *, seed: int, count: int = 40) -> list[Path]:
    """Write segments of consecutive times. Every third one has events of earlier days as well."""
    paths = []
    for number in numbers:
        dice = random.Random(f"{seed}/{number}")
        parts = random_events(dice, count, at=BEGIN + number * 5)
        if number % 3 == 0:
            parts += random_events(dice, 5, at=BEGIN - dice.randrange(200_000))
        paths.append(write_segment(folder, number, parts))
    return paths


def truth_of(paths: Iterable[Path], *, seconds: int) -> Truth:
    """Return count, bytes, sum and maximum of latencies, and buckets per key, for spans of `seconds`."""
    counts: Counter[tuple[Any, ...]] = Counter()
    sums: dict[tuple[Any, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    buckets: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for path in paths:
        for row in _rows(path):
            at = row["time"] // 1_000_000
            kind = row["response_class"] or row["outcome"]
            resource = row["subscription"] or row["topic"]
            key = (resource, row["event"], at - at % seconds, kind, row["response_code"] or 0, row["host"] or "")
            counts[key] += 1
            latency = row["latency_us"]
            sums[key][0] += row["bytes"] or 0
            sums[key][1] += latency or 0
            sums[key][2] = max(sums[key][2], latency or 0)
            if latency is not None:
                buckets[key][str(math.ceil(math.log2(max(latency, 1)) * 32))] += 1
    return {key: (counts[key], *sums[key], dict(buckets[key])) for key in counts}


def _rows(path: Path) -> list[dict[str, Any]]:
    table = pq.read_table(path)
    times = table["time"].cast(pa.int64())
    return table.set_column(table.schema.get_field_index("time"), "time", times).to_pylist()


def metrics_of(model: type[Metric]) -> Truth:
    """Return the metrics of the database, in the form of `truth_of`."""
    return {
        (row.resource, row.event, int(row.at.timestamp()), row.response_class, row.response_code, row.host): (
            row.count,
            row.bytes,
            row.latency_us_sum,
            row.latency_us_max,
            row.buckets,
        )
        for row in model._default_manager.all()
    }


def assert_counted(paths: Iterable[Path]) -> None:
    """Assert that minutes, hours and days count exactly these segments."""
    paths = list(paths)
    for model, seconds in SPANS:
        assert metrics_of(model) == truth_of(paths, seconds=seconds), model.__name__
    assert set(Segment.objects.filter(state="counted").values_list("name", flat=True)) == {p.name for p in paths}


def pages_damage(path: Path) -> None:
    """Overwrite the pages of a file; its footer stays good."""
    raw = bytearray(path.read_bytes())
    raw[40:240] = b"\xff" * 200
    path.write_bytes(raw)


def counted_by_duckdb(paths: Iterable[Path], *, seconds: int) -> Truth:
    """Return what `truth_of` does, as DuckDB counts it."""
    query = """
        WITH events AS (
            SELECT coalesce(subscription, topic) AS resource, event,
                epoch_us("time") // ($seconds::BIGINT * 1000000) * $seconds AS moment,
                coalesce(nullif(response_class, ''), outcome) AS kind, coalesce(response_code, 0) AS code,
                coalesce(host, '') AS host, bytes, latency_us,
                CASE WHEN latency_us IS NOT NULL THEN ceil(log2(greatest(latency_us, 1)) * 32)::INT END AS bucket
            FROM read_parquet($paths)
        ), bucketed AS (
            SELECT resource, event, moment, kind, code, host, bucket, count(*) AS n, coalesce(sum(bytes), 0) AS bytes,
                coalesce(sum(latency_us), 0) AS latency_us, coalesce(max(latency_us), 0) AS most
            FROM events GROUP BY ALL
        )
        SELECT resource, event, moment, kind, code, host, sum(n)::BIGINT, sum(bytes)::BIGINT, sum(latency_us)::BIGINT,
            max(most), list(bucket) FILTER (bucket IS NOT NULL), list(n) FILTER (bucket IS NOT NULL)
        FROM bucketed GROUP BY ALL
    """
    with duckdb.connect() as engine:
        rows = engine.execute(query, {"paths": [str(path) for path in paths], "seconds": seconds}).fetchall()
    return {
        tuple(row[:6]): (*row[6:10], dict(zip(map(str, row[10] or ()), row[11] or (), strict=True))) for row in rows
    }


def archived_table(ids: Sequence[int], **columns: Sequence[object]) -> pa.Table:
    """Return the rows of a file of the archive with messages of these ids."""
    usual: dict[str, Sequence[object]] = {
        "topic": ["projects/shop/topics/orders"] * len(ids),
        "message_id": [str(message_id) for message_id in ids],
        "publish_time": [0] * len(ids),
        "data": [message_id.to_bytes(8, "big") * 20 for message_id in ids],
        "attributes": [""] * len(ids),
        "ordering_key": [""] * len(ids),
    }
    return pa.table(usual | columns)


def archived_by_duckdb(root: Path) -> dict[str, int]:
    """Return how many different messages of each topic the files of the manifest have, as DuckDB counts them."""
    with duckdb.connect() as engine:
        listing = engine.execute(
            "SELECT path FROM read_csv($1, header = true, all_varchar = true)", [f"{root}/files.csv"]
        )
        paths = [f"{root}/{path}" for (path,) in listing.fetchall()]
        query = "SELECT topic, count(*), count(DISTINCT message_id) FROM read_parquet($1) GROUP BY topic"
        rows = engine.execute(query, [paths]).fetchall()
    assert all(count == different for _, count, different in rows), "a message is there twice"
    return {topic: count for topic, count, _ in rows}
