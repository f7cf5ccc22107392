"""The rows of the table: what each measures, where its code is, and which keys it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `keys` must be in its results, to which the code may add others."""

    module: str
    function: str
    what: str
    keys: tuple[str, ...]
    #: Whether this is the row of the same function on PostgreSQL; its name ends with "_postgresql".
    on_postgresql: bool = False

    def measure(self, *, quick: bool) -> dict[str, Any]:
        function: Callable[[bool], dict[str, Any]] = getattr(import_module(f"bench.{self.module}"), self.function)
        return function(quick)


ROWS = {
    "drain": Row(
        "drain",
        "drain",
        "100,000 waiting messages, beside stock Celery and wrk",
        ("drain_ratio_vs_stock_celery", "drain_ratio_vs_wrk"),
    ),
    "publish": Row("publishing", "publish", "publishes accepted over REST", ("publish_per_second",)),
    "sustained": Row("publishing", "sustained", "publish to acked, on SQLite", ("sustained_per_second_sqlite",)),
    "sustained_postgresql": Row(
        "publishing",
        "sustained",
        "publish to acked, on PostgreSQL",
        ("sustained_per_second_postgresql",),
        on_postgresql=True,
    ),
    "single": Row(
        "single",
        "single",
        "single publishes over REST: accepted, and delivered with one push subscription, on SQLite",
        ("single_rest_per_second_sqlite", "single_cpu_us_a_message"),
    ),
    "single_postgresql": Row(
        "single",
        "single",
        "the same on PostgreSQL",
        ("single_rest_per_second_postgresql",),
        on_postgresql=True,
    ),
    "single_grpc": Row("single", "single_grpc", "single publishes accepted over gRPC", ("single_grpc_per_second",)),
    "worker_at_200": Row(
        "single", "worker_at_low_rate", "the push worker's CPU a message at 200 a second", ("worker_us_at_200",)
    ),
    "client_publish": Row(
        "official", "client_publish", "the official client with default batching", ("client_publish_per_second",)
    ),
    "streaming_pull": Row(
        "official", "streaming_pull", "one stream, with the official client and raw", ("streaming_pull_per_second",)
    ),
    "fanout": Row(
        "fanout", "fanout", "deliveries of publishes to 1,000 and to 100 subscriptions", ("fanout_per_second",)
    ),
    "transforms": Row(
        "transforms", "transforms", "messages that a function in JavaScript changes", ("transformed_per_second",)
    ),
    "up": Row("up", "up", "the start of `make up`, and its memory", ("up_pss_mb", "up_start_seconds")),
    "emulator": Row(
        "up",
        "emulator",
        "the start of `pushhub emulator`, and its memory",
        ("emulator_pss_mb", "emulator_start_seconds"),
    ),
    "latency": Row(
        "latency",
        "latency",
        "publish to arrival at 500 a second",
        ("latency_ms_p50", "latency_ms_p99", "latency_from_request_ms_p50", "latency_from_request_ms_p99"),
    ),
    "outstanding": Row(
        "neighbours",
        "outstanding",
        "30,000 outstanding for 10 s",
        ("outstanding_30000_rss_mb", "outstanding_30000_others_p99_ratio"),
    ),
    "flow": Row(
        "flow",
        "flow",
        "endpoints with hard limits of concurrency, and one with 5 % random nacks",
        ("limit_10_share", "limit_100_share", "limit_1000_share", "nacks_5_percent_share"),
    ),
    "fairness": Row("neighbours", "fairness", "healthy endpoints beside hanging ones", ("fairness_rate_ratio",)),
    "backlog": Row(
        "costs",
        "backlog",
        "a message's cost behind 1,000,000, and Redis' memory",
        ("cost_ratio_backlog", "redis_mb_dead_endpoint"),
    ),
    "subscriptions": Row(
        "costs", "subscriptions", "a message's cost among 10,000 subscriptions", ("cost_ratio_subscriptions",)
    ),
    "attempts": Row(
        "attempts",
        "attempts",
        "the attempts of one message among ten million",
        ("attempts_of_a_message_ms", "attempts_of_a_message_ms_at_most", "attempts_of_a_message_found_percent"),
    ),
    "journal": Row("journal", "journal", "the drain with the journal and without", ("journal_cost_percent",)),
    "rollup": Row(
        "rollup",
        "rollup",
        "attempts counted into metrics, on Spark and in DuckDB",
        ("rollup_per_second", "rollup_duckdb_per_second", "rollup_idle_percent_of_a_core"),
    ),
    "embedded_counter": Row(
        "rollup",
        "embedded_counter",
        "attempts counted into metrics without Spark",
        ("embedded_counter_per_second", "embedded_counter_idle_percent_of_a_core"),
    ),
    "rollup_sizes": Row(
        "rollup", "rollup_sizes", "the rollup at 1, 4 and 16 times the data", ("rollup_cost_spread_percent",)
    ),
    "ledger_lock": Row(
        "rollup",
        "ledger_lock",
        "how long the ledger holds SQLite's write lock at 10,000 subscriptions",
        ("ledger_lock_ms_max",),
    ),
    "archive": Row(
        "archive",
        "archive",
        "messages of 1 KiB to Parquet, replayed, and ingested from a file",
        ("archive_per_second", "replay_per_second", "ingest_per_second"),
    ),
    "data_source": Row(
        "datasource",
        "data_source",
        "messages of 1 KiB, read from the archive by Spark's data source",
        ("data_source_per_second",),
    ),
    "data_source_sizes": Row(
        "datasource",
        "data_source_sizes",
        "the data source at 1, 4 and 16 times the data",
        (),
    ),
    "ingest_large": Row(
        "archive",
        "ingest_large",
        "a Parquet file with one row group of 60 messages of 6 MB, ingested with a heap of 512 MB",
        ("ingest_large_mb_per_second", "ingest_large_java_mb"),
    ),
    "archive_sizes": Row("archive", "archive_sizes", "archive, replay and ingest at 1, 4 and 16 times the data", ()),
    "ordered_pull": Row(
        "pulling",
        "ordered",
        "StreamingPull with ordering keys, over a raw gRPC stream",
        ("ordered_pull_per_second", "ordered_pull_one_key_per_second"),
    ),
    "idle": Row("costs", "idle", "the worker and Redis with nothing to do", ("idle_percent_of_a_core",)),
}


def row_named(name: str) -> str | None:
    """Return the row with this name, or the row that fills the key with this name."""
    if name in ROWS:
        return name
    return next((row_name for row_name, row in ROWS.items() if name in row.keys), None)
