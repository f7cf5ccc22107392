"""Events as columns: what writers append, and the Arrow batches that come of it. Arrow loads with the first event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.schemas import EVENT, EVENT_VERSION
from deliveries.rules.ids import EPOCH_MS, TIME_SHIFT

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Events:
    """A number of events: columns with a value each, and values that all of them share. What is in neither is null.

    `message_id` is given as numbers; the publish time follows from it.
    """

    count: int
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    shared: Mapping[str, Any] = field(default_factory=dict)


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


def record_batch(parts: Sequence[Events]) -> pa.RecordBatch:
    """One batch of all parts, in order."""
    import pyarrow as pa

    schema = event_schema()
    lists = {name: _joined(parts, name) for name in schema.names}
    message_ids = pa.array(lists["message_id"], pa.int64())
    arrays = {
        name: pa.array(values, schema.field(name).type)
        for name, values in lists.items()
        if name not in ("message_id", "publish_time", "schema_version")
    }
    arrays["message_id"] = message_ids.cast(pa.string())
    arrays["publish_time"] = _publish_times(message_ids)
    arrays["schema_version"] = pa.repeat(pa.scalar(EVENT_VERSION, pa.int16()), len(message_ids))
    return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)


def _joined(parts: Sequence[Events], name: str) -> list[Any]:
    joined: list[Any] = []
    for part in parts:
        values = part.columns.get(name)
        joined += [part.shared.get(name)] * part.count if values is None else values
    return joined


def _publish_times(message_ids: pa.Array) -> pa.Array:
    """`rules.ids.publish_time_ms` for a whole column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    milliseconds = pc.add(pc.shift_right(message_ids, TIME_SHIFT), EPOCH_MS)
    return pc.multiply(milliseconds, 1000).cast(pa.timestamp("us", tz="UTC"))
