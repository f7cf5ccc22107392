"""The columns of the journal. Arrow writes them and Spark reads them.

The types are string, int16, int32, int64 and timestamp (microseconds, UTC). Columns are only ever added, at the end.
A reader sees null where an older file lacks a column.
"""

from __future__ import annotations

#: A row is an attempt, another settlement, or a publish.
EVENT = (
    # push (an attempt), pull, streaming_pull, publish; or another end of a delivery: dead_letter, acked, drop.
    ("event", "string"),
    ("time", "timestamp"),
    ("project", "string"),
    ("region", "string"),
    # Full names, so that a row can be understood after its resource was deleted.
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
    # The state of the lane after the attempt was settled.
    ("push_window", "int32"),
    ("backoff_ms", "int32"),
    ("worker", "string"),
    ("schema_version", "int16"),
    # The beginning of a failing answer, without secrets, if the subscription keeps those.
    ("answer", "string"),
)
EVENT_VERSION = 1
