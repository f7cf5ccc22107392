"""The columns of a subscription's messages, and how they travel to Spark's tasks. No Django here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from deliveries.pipeline.archiving.columns import COLUMNS as ARCHIVED
from deliveries.pipeline.archiving.columns import arrow_schema_of

if TYPE_CHECKING:
    import pyarrow as pa

#: The columns and their types in Spark's terms.
COLUMNS: Mapping[str, str] = {
    **{name: ARCHIVED[name] for name in ("message_id", "publish_time", "data", "attributes", "ordering_key")},
    # How often the message was handed out; null for a subscription without a dead-letter policy.
    "delivery_attempt": "int",
}
SCHEMA = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())


@dataclass(frozen=True)
class Messages(InputPartition):
    """The messages of a partition as a compressed stream of Arrow. A task may read them any number of times."""

    encoded: bytes = field(repr=False)

    @classmethod
    def of(cls, received: Sequence[Any]) -> Messages:
        """Encode `ReceivedMessage`s."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        batch = _batch(received)
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return cls(sink.getvalue().to_pybytes())

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with pa.ipc.open_stream(self.encoded) as reader:
            for batch in reader:
                yield batch.select(columns)


def _batch(received: Sequence[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    messages = [entry.message for entry in received]
    times = [message.publish_time.seconds * 1_000_000 + message.publish_time.nanos // 1000 for message in messages]
    columns = {
        "message_id": [message.message_id for message in messages],
        "publish_time": times,
        "data": [message.data for message in messages],
        "attributes": [list(message.attributes.items()) for message in messages],
        "ordering_key": [message.ordering_key for message in messages],
        "delivery_attempt": [entry.delivery_attempt or None for entry in received],
    }
    return pa.RecordBatch.from_pydict(columns, schema=arrow_schema_of(COLUMNS))
