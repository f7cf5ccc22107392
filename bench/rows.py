"""The rows of the table: what each measures, where its code is, and which keys it fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `keys` are the issue's, the code adds some of its own."""

    module: str
    function: str
    what: str
    keys: tuple[str, ...]
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
    "latency": Row("latency", "latency", "publish to arrival at 500 a second", ("latency_ms_p50", "latency_ms_p99")),
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
    "journal": Row("journal", "journal", "the drain with the journal and without", ("journal_cost_percent",)),
    "rollup": Row(
        "rollup",
        "rollup",
        "attempts counted into metrics, on Spark and in DuckDB",
        ("rollup_per_second", "rollup_duckdb_per_second", "rollup_idle_percent_of_a_core"),
    ),
    "archive": Row(
        "archive",
        "archive",
        "messages of 1 KiB to Parquet, replayed, and ingested from a file",
        ("archive_per_second", "replay_per_second", "ingest_per_second"),
    ),
    "idle": Row("costs", "idle", "the worker and Redis with nothing to do", ("idle_percent_of_a_core",)),
}


def row_named(name: str) -> str | None:
    """The row of that name, or the row that fills the key of that name."""
    if name in ROWS:
        return name
    return next((row for row, found in ROWS.items() if name in found.keys), None)
