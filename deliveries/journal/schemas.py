"""The columns of the pipeline's files, as data: the journal writes them with Arrow, Spark reads them.

Types are named as both know them: string, int16, int32, int64, binary, timestamp (microseconds, UTC), and
map<string,string>. Columns are only ever added, at the end; a reader sees null where an old file has none.
"""

from __future__ import annotations

#: What the archive keeps of a message (the names are those of Google's exports to storage and BigQuery).
MESSAGE = (
    ("project", "string"),
    ("topic", "string"),
    ("message_id", "string"),
    ("publish_time", "timestamp"),
    ("data", "binary"),
    ("attributes", "map<string,string>"),
    ("ordering_key", "string"),
)

#: What the journal keeps: one row for each attempt, each settlement that is no attempt, and each publish.
EVENT = (
    # push (an attempt), pull, streaming_pull, publish, or what ended a delivery otherwise: dead_letter, expire, drop.
    ("event", "string"),
    ("time", "timestamp"),
    ("project", "string"),
    ("region", "string"),
    # Full names, so that a row says what it is about when the resource is long gone.
    ("subscription", "string"),
    ("subscription_id", "int64"),
    ("topic", "string"),
    ("topic_id", "int64"),
    ("message_id", "string"),
    ("publish_time", "timestamp"),
    ("attempt", "int32"),
    # ack, nack, release, drop; accepted for a publish.
    ("outcome", "string"),
    ("response_class", "string"),
    ("response_code", "int32"),
    ("reason", "string"),
    ("latency_us", "int64"),
    ("bytes", "int64"),
    ("host", "string"),
    # Of the lane, after the settle that the attempt was a part of.
    ("push_window", "int32"),
    ("backoff_ms", "int32"),
    ("worker", "string"),
    ("schema_version", "int16"),
)
EVENT_VERSION = 1
