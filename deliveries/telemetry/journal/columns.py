"""Events as columns: the lines that writers append, and the Arrow tables into which sealing turns them.

The types are string, int16, int32, int64 and timestamp (microseconds, UTC). Columns are only ever added, at the end.
A reader sees null where an older file lacks a column.

Writers don't import Arrow: it would take 110 MB of memory in each process, and a tenth of the push worker's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import orjson

from deliveries.rules.ids import publish_time_ms
from deliveries.rules.outcome import response_class

if TYPE_CHECKING:
    import pyarrow as pa

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


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` events: columns with a value per event, and values that all events share. Any other value is null.

    Message ids are strings. The publish time is derived from them, and the response class from code and reason.
    """

    count: int
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the events as a line of a journal."""
        row = {"count": self.count, "columns": self.columns, "shared": self.shared, "version": EVENT_VERSION}
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)


def parse_line(line: bytes) -> Rows:
    """Parse a line that `Rows.line` wrote. Raises ValueError for any other line."""
    row = orjson.loads(line)
    if not isinstance(row, dict) or not {"count", "columns", "shared"} <= row.keys():
        raise ValueError("not a line of a journal")
    if any(len(values) != row["count"] for values in row["columns"].values()):
        raise ValueError("columns of different lengths")
    return Rows(row["count"], row["columns"], row["shared"])


@cache
def event_schema() -> pa.Schema:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int16": pa.int16(),
        "int32": pa.int32(),
        "int64": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, types[kind]) for name, kind in EVENT])


def table_of(parts: Sequence[Rows]) -> pa.Table:
    """Return the events of all parts, in order, with every column of the schema."""
    import pyarrow as pa

    schema = event_schema()
    lists = {name: _joined(parts, name) for name in schema.names}
    lists["publish_time"] = [publish_time_ms(int(name)) * 1000 for name in lists["message_id"]]
    lists["response_class"] = [
        str(response_class(code, reason)) if event == "push" else own_class
        for event, own_class, code, reason in zip(
            lists["event"], lists["response_class"], lists["response_code"], lists["reason"], strict=True
        )
    ]
    lists["schema_version"] = [EVENT_VERSION] * len(lists["event"])
    return pa.table([pa.array(lists[name], schema.field(name).type) for name in schema.names], schema=schema)


def _joined(parts: Sequence[Rows], name: str) -> list[Any]:
    joined: list[Any] = []
    for part in parts:
        values = part.columns.get(name)
        joined += [part.shared.get(name)] * part.count if values is None else values
    return joined
