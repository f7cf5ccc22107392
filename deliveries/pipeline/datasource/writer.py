"""Publishes the rows of a frame, or of a stream's batches, by the API: each at least once, in the partition's order.

A task that Spark runs again publishes its rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.datasource.connection import OPTIONS, Connection, patient
from deliveries.pipeline.datasource.options import require_known
from pushhub.common.batches import gather
from pushhub.common.errors import InvalidArgument
from pushhub.common.names import parse_topic

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

KNOWN = OPTIONS | {"topic", "path", "checkpointlocation", "queryname"}
#: The columns that are published, and their types. `data` must be there.
TYPES: Mapping[str, tuple[str, ...]] = {
    "data": ("binary", "string"),
    "attributes": ("map<string,string>",),
    "ordering_key": ("string",),
}
#: A request's messages, and their bytes; the API takes 1,000 and 10 MB.
REQUEST_MESSAGES = 1000
REQUEST_BYTES = 9_000_000
CALL_SECONDS = 60.0
#: The requests that a task makes at the same time, if its messages have ordering keys.
REQUESTS = 8
#: Spark 4.0 has no Arrow writer for streams, and gives the rows one by one.
HAS_ARROW = hasattr(spark, "DataSourceStreamArrowWriter")
_STREAM_WRITER: type = spark.DataSourceStreamArrowWriter if HAS_ARROW else spark.DataSourceStreamWriter

#: The number of a row in its partition, from 1 on, and its message.
Numbered = tuple[int, Any]


@dataclass(frozen=True, slots=True)
class Destination:
    """The topic, and how to reach it."""

    topic: str
    connection: Connection

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType) -> Destination:
        """Read the options. Raises InvalidArgument, which names the option or the column that is wrong."""
        require_known(options, KNOWN)
        topic = options.get("topic", "")
        if not topic:
            raise InvalidArgument('Give the topic: option("topic", "projects/shop/topics/orders").', field="topic")
        parse_topic(topic, field="topic")
        _require_columns(schema)
        return cls(topic, Connection.of(options))

    def publish(self, rows: Iterable[Mapping[str, Any]]) -> spark.WriterCommitMessage:
        """Publish the rows of a task. Raises RuntimeError for a row that PushHub refuses."""
        client = self.connection.publisher()
        try:
            with ThreadPoolExecutor(REQUESTS) as pool:
                for messages in _gathered(rows):
                    # The API takes one ordering key in a request, so keys are published at the same time.
                    list(pool.map(partial(self._publish, client), _by_key(messages)))
        finally:
            client.transport.close()
        return spark.WriterCommitMessage()

    def _publish(self, client: Any, messages: Sequence[Numbered]) -> None:
        from google.api_core.exceptions import InvalidArgument as Refused

        try:
            self._call(client, [message for _, message in messages])
        except Refused as error:
            if len(messages) == 1:
                raise RuntimeError(f"row {messages[0][0]} of a partition is refused: {error.message}") from None
            # A request is all or nothing, and doesn't say which of its messages it is about.
            for message in messages:
                self._publish(client, [message])

    def _call(self, client: Any, messages: list[Any]) -> None:
        from google.pubsub_v1.types import PublishRequest

        request = PublishRequest.wrap(PublishRequest.pb()(topic=self.topic, messages=messages))
        client.publish(request=request, retry=patient(), timeout=CALL_SECONDS)


class Publisher(spark.DataSourceArrowWriter):
    """Publishes a frame."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def write(self, iterator: Iterator[pa.RecordBatch]) -> spark.WriterCommitMessage:
        return self._destination.publish(rows_of(iterator))


class StreamPublisher(_STREAM_WRITER):
    """Publishes the batches of a stream."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def write(self, iterator: Iterator[Any]) -> spark.WriterCommitMessage:
        rows = rows_of(iterator) if HAS_ARROW else (row.asDict() for row in iterator)
        return self._destination.publish(rows)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, Any]]:
    for batch in batches:
        for start in range(0, batch.num_rows, REQUEST_MESSAGES):
            yield from batch.slice(start, REQUEST_MESSAGES).to_pylist(maps_as_pydicts="lossy")


def _gathered(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Numbered]]:
    """Return the messages of rows, as many at a time as a request takes."""
    messages = enumerate(map(_message, rows), start=1)
    return gather(messages, most=REQUEST_MESSAGES, size_of=lambda pair: pair[1].ByteSize(), size=REQUEST_BYTES)


def _by_key(messages: Iterable[Numbered]) -> Iterable[list[Numbered]]:
    keys: dict[str, list[Numbered]] = {}
    for numbered in messages:
        keys.setdefault(numbered[1].ordering_key, []).append(numbered)
    return keys.values()


def _message(row: Mapping[str, Any]) -> Any:
    from google.pubsub_v1.types import PubsubMessage

    data = row["data"] or b""
    return PubsubMessage.pb()(
        data=data.encode() if isinstance(data, str) else bytes(data),
        attributes={name: value for name, value in (row.get("attributes") or {}).items() if value is not None},
        ordering_key=row.get("ordering_key") or "",
    )


def _require_columns(schema: StructType) -> None:
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "data" not in types:
        raise InvalidArgument("The frame has no column 'data', which is the data of a message.", field="data")
    for name, kind in types.items():
        if name not in TYPES:
            raise InvalidArgument(
                f"The column {name!r} is not part of a message: select {', '.join(TYPES)}.", field=name
            )
        if kind not in TYPES[name]:
            raise InvalidArgument(f"The column {name!r} must be {' or '.join(TYPES[name])}, not {kind}.", field=name)
