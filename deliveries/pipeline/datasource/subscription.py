"""Reads a subscription: as a stream, which acknowledges what Spark has committed, and as a table, which only looks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.datasource.connection import OPTIONS, Connection
from deliveries.pipeline.datasource.leases import Leases, Share
from deliveries.pipeline.datasource.messagecolumns import COLUMNS, Messages
from deliveries.pipeline.datasource.options import columns_of, number_of, require_known
from deliveries.pipeline.datasource.triggers import SupportsTriggerAvailableNow
from pushhub.common.names import parse_subscription

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

KNOWN = OPTIONS | {"subscription", "partitions", "maxmessages", "maxbytes", "idleseconds"}
STREAM_KNOWN = OPTIONS | {"subscription", "partitions", "maxmessagespertrigger", "maxbytespertrigger", "idleseconds"}
#: The streams, and so the partitions of a batch.
PARTITIONS = 4
MAX_MESSAGES = 10_000
#: A batch's messages travel within its tasks, each of which may have 128 MB at most by Spark's default.
MAX_BYTES = 64 * 2**20
#: A subscription from which nothing came for so long is taken for empty.
IDLE_SECONDS = 5
#: How long a trigger waits for a message before it tells Spark that there is none.
WAIT_SECONDS = 0.5
#: A stream holds so many batches' messages, so that one comes while another is at work.
BATCHES_AHEAD = 2
#: An offset: the time at which a batch was pulled, in ms since 1970. It says nothing about its messages.
PULLED = "pulled"


@dataclass(frozen=True, slots=True)
class Source:
    """What is read: the options, checked, and the columns."""

    subscription: str
    columns: tuple[str, ...]
    #: Tasks get these, and no credentials.
    options: Mapping[str, str]
    partitions: int
    max_messages: int
    max_bytes: int
    idle_seconds: int

    @classmethod
    def of(cls, options: Mapping[str, str], schema: StructType, *, trigger: bool) -> Source:
        """Read the options of a stream, if `trigger`, or of a table. Raises InvalidArgument, which names the option."""
        require_known(options, STREAM_KNOWN if trigger else KNOWN)
        suffix = "PerTrigger" if trigger else ""
        subscription = options["subscription"]
        parse_subscription(subscription, field="subscription")
        columns = columns_of(schema, COLUMNS, of="A subscription")
        Connection.of(options)
        most = number_of(options, f"maxMessages{suffix}", MAX_MESSAGES)
        return cls(
            subscription,
            columns,
            options,
            min(number_of(options, "partitions", PARTITIONS), most),
            most,
            number_of(options, f"maxBytes{suffix}", MAX_BYTES),
            number_of(options, "idleSeconds", IDLE_SECONDS),
        )

    def lease(self, *, ahead: int) -> Leases:
        """Open the streams. Each holds `ahead` times its share of a batch at most."""
        share = Share(self.max_messages // self.partitions, max(self.max_bytes // self.partitions, 1))
        return Leases(Connection.of(self.options), self.subscription, streams=self.partitions, share=share, ahead=ahead)


@dataclass(slots=True)
class Batch:
    """A batch that Spark knows by its end and has not committed yet."""

    end: int
    parts: list[Messages]
    ack_ids: list[str]


class SubscriptionStreamReader(SupportsTriggerAvailableNow, spark.DataSourceStreamReader):
    """Leases messages in the driver, hands them to tasks, and acknowledges them once Spark has committed their batch.

    Tasks get a copy of the reader, and use `read` alone.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._leases: Leases | None = None
        self._batch: Batch | None = None
        #: The end of the last batch.
        self._end = 0
        #: With the trigger availableNow, the time of its start: messages published later are left for the next run.
        self._until: float | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {PULLED: 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._until = time.time()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """Return the end of the next batch, or `start` if there are no messages.

        Spark asks for it when the batch that ended with `start` is committed.
        """
        self._end = start[PULLED]
        if self._batch is not None and self._batch.end == self._end:
            self._acknowledge(self._batch)
        if self._batch is None:
            self._batch = self._next_batch()
        return {PULLED: self._end if self._batch is None else self._batch.end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[spark.InputPartition]:
        """Return the messages of a batch, the same ones each time.

        A batch of an earlier process has none: its sink may have them all already and skip it, so anything that is
        acknowledged with it might be lost. PushHub gives out its messages again, for a later batch.
        """
        if self._batch is None or self._batch.end != end[PULLED]:
            return []
        return self._batch.parts

    def commit(self, end: dict[str, int]) -> None:
        if self._batch is not None and self._batch.end == end[PULLED]:
            self._acknowledge(self._batch)

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Messages)
        return partition.batches(self._source.columns)

    def stop(self) -> None:
        leases, self._leases = self._leases, None
        if leases is not None:
            if self._batch is not None:
                leases.give_back(self._batch.ack_ids)
            leases.close()

    def _next_batch(self) -> Batch | None:
        wait = WAIT_SECONDS if self._until is None else float(self._source.idle_seconds)
        if self._leases is None:
            self._leases = self._source.lease(ahead=BATCHES_AHEAD)
            # The streams have to be opened first.
            wait = float(self._source.idle_seconds)
        taken = self._leases.take(seconds=wait)
        until = self._until
        if until is not None and all(_published_at(message) > until for part in taken for message in part):
            return None
        if not taken:
            return None
        ack_ids = [message.ack_id for part in taken for message in part]
        self._leases.touch(ack_ids)
        return Batch(max(int(time.time() * 1000), self._end + 1), [Messages.of(part) for part in taken], ack_ids)

    def _acknowledge(self, batch: Batch) -> None:
        assert self._leases is not None
        self._leases.acknowledge(batch.ack_ids)
        self._end, self._batch = batch.end, None


class SubscriptionReader(spark.DataSourceReader):
    """Shows the messages that a subscription would deliver now. It acknowledges none, and gives all of them back."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def partitions(self) -> Sequence[spark.InputPartition]:
        parts: list[Messages] = []
        # Nothing is acknowledged, so PushHub sends no more than one share to each stream.
        leases = self._source.lease(ahead=1)
        try:
            while taken := leases.take(seconds=self._source.idle_seconds):
                parts += map(Messages.of, taken)
            return parts
        finally:
            leases.close()

    def read(self, partition: spark.InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark reads one empty partition of a subscription without messages.
        if not isinstance(partition, Messages):
            return iter(())
        return partition.batches(self._source.columns)


def _published_at(received: Any) -> float:
    at = received.message.publish_time
    return float(at.seconds + at.nanos / 1e9)
