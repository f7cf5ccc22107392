"""The rows of the table: what each measures, where its code is, and which keys it fills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from bench.processes import BenchError


@dataclass(frozen=True, slots=True)
class Row:
    """One row; `keys` must be in its results, to which the code may add others."""

    module: str
    function: str
    what: str
    keys: tuple[str, ...]
    #: Whether this is the row of the same function on PostgreSQL; its name ends with "_postgresql".
    on_postgresql: bool = False
    #: Those of the keys whose figure may be 0, or less as it is a difference.
    may_be_nothing: tuple[str, ...] = ()
    #: The gates: the least and the most that a figure may be in a run that isn't quick.
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)

    def measure(self, *, quick: bool) -> dict[str, Any]:
        function: Callable[[bool], dict[str, Any]] = getattr(import_module(f"bench.{self.module}"), self.function)
        return function(quick)

    def check(self, figures: dict[str, Any]) -> None:
        """Raise BenchError for figures that show that nothing was measured."""
        for key in self.keys or figures:
            figure = figures.get(key)
            if not isinstance(figure, int | float) or (figure <= 0 and key not in self.may_be_nothing):
                raise BenchError(f"{key} is {figure}, so nothing was measured")

    def missed(self, figures: dict[str, Any]) -> list[str]:
        """Return a sentence for each gate that the figures miss."""
        low = [
            f"{key} is {figures[key]}, and should be at least {bound}"
            for key, bound in self.least.items()
            if figures[key] < bound
        ]
        high = [
            f"{key} is {figures[key]}, and should be at most {bound}"
            for key, bound in self.most.items()
            if figures[key] > bound
        ]
        return low + high


#: What a healthy subscription has neighbours of (bench/crowd.py).
CROWDS = ("dead", "slow", "large", "burning", "poison")
#: A healthy subscription keeps this share of its rate, and its p99 grows at most this many times.
LEAST_RATE, MOST_P99 = 0.8, 3.0
#: Redis never takes more than this for 1,000,000 messages behind 1,000 dead endpoints.
MOST_REDIS_MB = 64.0


def _neighbours(suffix: str = "") -> Row:
    least = {f"neighbours_{name}_rate_ratio{suffix}": LEAST_RATE for name in CROWDS}
    most = {f"neighbours_{name}_p99_ratio{suffix}": MOST_P99 for name in CROWDS}
    most[f"neighbours_dead_redis_mb_peak{suffix}"] = MOST_REDIS_MB
    what = "a healthy subscription beside 1,000 that are dead, slow, large, burn in transforms or are refused"
    return Row(
        "crowd",
        "neighbours",
        f"{what}, on PostgreSQL" if suffix else what,
        (*least, *most),
        on_postgresql=bool(suffix),
        least=least,
        most=most,
    )


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
    "cpu_by_rate": Row(
        "rates",
        "cpu_by_rate",
        "CPU of all processes of `make up` a message, at 20, 100 and 500 a second",
        ("cpu_us_a_message_at_20", "cpu_us_a_message_at_100", "cpu_us_a_message_at_500"),
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
        may_be_nothing=("latency_ms_p50", "latency_ms_p99"),
    ),
    "ordered_latency": Row(
        "latency",
        "ordered_latency",
        "single publishes with ordering keys, and without",
        ("ordered_latency_from_request_ms_p50", "plain_latency_from_request_ms_p50", "ordered_cpu_ratio"),
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
    "neighbours": _neighbours(),
    "neighbours_postgresql": _neighbours("_postgresql"),
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
    "journal": Row(
        "journal",
        "journal",
        "the drain with the journal and without",
        ("journal_cost_percent",),
        may_be_nothing=("journal_cost_percent",),
    ),
    "rollup": Row(
        "rollup",
        "rollup",
        "attempts counted into metrics, on Spark and in DuckDB",
        ("rollup_per_second", "rollup_duckdb_per_second", "rollup_idle_percent_of_a_core"),
        may_be_nothing=("rollup_idle_percent_of_a_core",),
    ),
    "embedded_counter": Row(
        "rollup",
        "embedded_counter",
        "attempts counted into metrics without Spark",
        ("embedded_counter_per_second", "embedded_counter_idle_percent_of_a_core"),
        may_be_nothing=("embedded_counter_idle_percent_of_a_core",),
    ),
    "rollup_sizes": Row(
        "rollup",
        "rollup_sizes",
        "the rollup at 1, 4 and 16 times the data",
        ("rollup_cost_spread_percent",),
        may_be_nothing=("rollup_cost_spread_percent",),
    ),
    "ledger_lock": Row(
        "rollup",
        "ledger_lock",
        "how long the ledger holds SQLite's write lock, and a turn of the counter lasts, at 10,000 subscriptions",
        ("ledger_lock_ms_max", "embedded_counter_turn_seconds_max"),
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
        "messages of 1 KiB, read from the archive by the data source, and by `read_archive` beside Spark alone",
        ("data_source_per_second", "archive_count_ratio", "archive_one_column_ratio", "archive_bounds_ratio"),
        most={"archive_count_ratio": 1.5, "archive_one_column_ratio": 1.5, "archive_bounds_ratio": 1.5},
    ),
    "subscription_source": Row(
        "datasource",
        "subscription_source",
        "messages of 1 KiB, read from a subscription by Spark's data source",
        ("subscription_source_per_second",),
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
    "ordered_push": Row(
        "ordering",
        "ordered_push",
        "the drain of an ordered push subscription with 10,000, 100 keys and one, beside a plain one",
        ("ordered_push_10000_keys_ratio", "ordered_push_100_keys_ratio", "ordered_push_one_key_per_second"),
    ),
    "audit": Row(
        "costs", "audit", "the CPU of an audit of 10,000 lanes", ("audit_cpu_seconds",), most={"audit_cpu_seconds": 2.0}
    ),
    "idle": Row(
        "costs",
        "idle",
        "the worker and Redis with nothing to do",
        ("idle_percent_of_a_core",),
        may_be_nothing=("idle_percent_of_a_core",),
    ),
}


def row_named(name: str) -> str | None:
    """Return the row with this name, or the row that fills the key with this name."""
    if name in ROWS:
        return name
    return next((row_name for row_name, row in ROWS.items() if name in row.keys), None)
