"""The SQL of metrics: the statement that writes them, and the condition that finds those of a resource."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import orjson
from django.db import connection
from django.db.models import Q
from django.db.models.expressions import RawSQL

from deliveries.rules.histogram import merged
from deliveries.store.sql import insert_by_arrays, is_postgresql

METRIC_KEY = "resource, event, at, response_class, response_code, host"
METRIC_SUMS = ("count", "bytes", "latency_us_sum", "latency_us_max", "buckets")
MetricRow = tuple[str, str, str, datetime, str, int, str, int, int, int, int, str]
_METRIC_CASTS = ("text", "text", "text", "timestamptz", "text", "integer", "text", *["bigint"] * 4, "jsonb")
#: Two histograms as one. SQLite calls a function of Python for it.
MERGED_SQLITE = "pushhub_buckets_merged({table}.buckets, excluded.buckets)"
MERGED_POSTGRESQL = (
    "(SELECT coalesce(jsonb_object_agg(bucket, n), '{{}}')"
    " FROM (SELECT key AS bucket, sum(value::bigint) AS n"
    " FROM (SELECT * FROM jsonb_each_text({table}.buckets)"
    " UNION ALL SELECT * FROM jsonb_each_text(excluded.buckets)) AS both_rows"
    " GROUP BY key) AS summed)"
)


def of_resources(resources: Iterable[str], **times: Any) -> Q:
    """Return the condition that a row of metrics or gauges is of one of these resources and times.

    `times` has conditions of `at`, such as `at__gte=start`. PostgreSQL sees no value when it plans, so that it expects
    of each what the average has, and looks both up in one index. Otherwise it expects most rows of the table from a
    busy subscription and a young time, as it knows how many are either and not how few are both, and reads the whole
    table. Of the newest minutes, which its statistics lack, it expects none, and reads all of their rows.
    """
    conditions = {"resource__in": list(resources), **times}
    if is_postgresql():
        sources = {"resource__in": "SELECT unnest(%s::text[])", "at__in": "SELECT unnest(%s::timestamptz[])"}
        conditions = {
            lookup: RawSQL(sources.get(lookup, "SELECT %s::timestamptz"), [value])  # noqa: S611 - our own texts
            for lookup, value in conditions.items()
        }
    return Q(**conditions)


def write_metrics(table: str, rows: Sequence[MetricRow], *, add: bool) -> None:
    """Write rows of metrics: project, key, sums. Buckets are JSON.

    `add` adds the sums to those of the row with the same key; otherwise they replace them.
    """
    on_postgresql = is_postgresql()
    changes = {name: f"excluded.{name}" for name in METRIC_SUMS}
    if add:
        changes |= {name: f"{table}.{name} + excluded.{name}" for name in ("count", "bytes", "latency_us_sum")}
        greatest = "GREATEST" if on_postgresql else "max"
        changes["latency_us_max"] = f"{greatest}({table}.latency_us_max, excluded.latency_us_max)"
        changes["buckets"] = (MERGED_POSTGRESQL if on_postgresql else MERGED_SQLITE).format(table=table)
    head = f"INSERT INTO {table} (project, {METRIC_KEY}, {', '.join(METRIC_SUMS)})"
    tail = f"ON CONFLICT ({METRIC_KEY}) DO UPDATE SET {', '.join(f'{name} = {new}' for name, new in changes.items())}"
    with connection.cursor() as cursor:
        if add and not on_postgresql:
            connection.connection.create_function("pushhub_buckets_merged", 2, _buckets_merged, deterministic=True)
        if not on_postgresql:
            cursor.executemany(
                f"{head} VALUES ({', '.join(['%s'] * len(_METRIC_CASTS))}) {tail}",
                [(*row[:3], connection.ops.adapt_datetimefield_value(row[3]), *row[4:]) for row in rows],
            )
        elif rows:
            cursor.execute(*insert_by_arrays(head, rows, casts=_METRIC_CASTS, tail=tail))


def _buckets_merged(first: str, second: str) -> str:
    return orjson.dumps(merged(map(orjson.loads, (first, second)))).decode()
