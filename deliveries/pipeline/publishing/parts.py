"""Publishes parts of a replay or an ingest in Spark's tasks.

One transaction publishes a batch and moves the position of the part. A task that runs again goes on from there, and of
two attempts of one task the later one fails. So a job publishes each message at most once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from deliveries.pipeline.service import Service
from pushhub.common.batches import gather

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column

    from deliveries.models import PublishPart
    from deliveries.rules.payload import NewMessage

#: Messages of one part, and the most parts of a job. A task publishes a part, sorted.
PART_ROWS = 20_000
MAX_PARTS = 64
BATCH = 1000
BATCH_BYTES = 10_000_000
#: The columns that say where a row comes from, for rejects.
PLACE = ("file", "line")

#: A row by column: `part` is the number of its part, and `data`, `attributes` and `ordering_key` are its message. The
#: message's id in the archive is the `position`; without it, rows are counted. A row with a `reason` is rejected, and
#: `text` is the row.
Row = Mapping[str, Any]
#: The position, and the message or the line of the rejects.
Item = tuple[int, "NewMessage | str"]


@dataclass(frozen=True, slots=True)
class Task:
    """What every task of a job knows."""

    service: Service
    job: int
    topic: int
    #: The primary key of the only subscription that gets the messages, or None for all.
    only: int | None
    #: Messages per second of one task; 0 is no limit.
    rate: float


def parts_for(count: int) -> int:
    """Return into how many parts a job of so many messages is divided."""
    return min(count // PART_ROWS + 1, MAX_PARTS) if count else 0


def part_of_key(key: Column, alone: Column, *, parts: int) -> Column:
    """Return the number of a message's part, which its ordering key decides or, without one, the value `alone`.

    A job may go on with another release of Spark, whose xxhash64 has the same values.
    """
    from pyspark.sql import functions as f

    return f.pmod(f.xxhash64(f.when(key != "", key).otherwise(alone.cast("string"))), f.lit(parts)).cast("int")


class Pace:
    """Limits a task to a number of messages per second since its start; 0 is no limit."""

    def __init__(
        self, rate: float, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._began = clock()
        self._done = 0
        #: Messages per batch, at most as many as the rate allows in one second.
        self.size = max(min(BATCH, int(rate)), 1) if rate else BATCH

    def wait(self, count: int) -> None:
        """Sleep until `count` messages more were allowed."""
        self._done += count
        if self._rate and (early := self._began + self._done / self._rate - self._clock()) > 0:
            self._sleep(early)


def publish(
    batches: Iterator[pa.RecordBatch], *, task: Task, read: Callable[[Iterator[pa.RecordBatch]], Any] = iter
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: publish the rows as the parts of the job that their column `part` names.

    `read` returns the batches of rows. Rows of a part come one after the other.
    """
    task.service.enter()
    from django.db import connection

    from deliveries.telemetry.sinks.counters import counters

    pace = Pace(task.rate)
    rows = (row for batch in read(batches) for row in batch.to_pylist())
    try:
        for part, rows_of_part in groupby(rows, key=itemgetter("part")):
            publish_part(rows_of_part, task=task, number=part, pace=pace)
    finally:
        connection.close()
        if process_counters := counters():
            process_counters.flush()  # Spark may kill this process at any time now
    return iter(())


def publish_part(rows: Iterable[Row], *, task: Task, number: int, pace: Pace) -> None:
    from deliveries.models import PublishPart
    from subscriptions.models import Topic

    part = PublishPart.objects.get(job=task.job, number=number)
    topic = Topic.objects.select_related("project").get(pk=task.topic)
    for batch in gather(_items(rows, part), most=pace.size, size_of=_size_of, size=BATCH_BYTES):
        _publish(part, batch, topic=topic, only=task.only)
        pace.wait(len(batch))
    PublishPart.objects.filter(pk=part.pk).update(finished=True)


def _items(rows: Iterable[Row], part: PublishPart) -> Iterator[Item]:
    """Yield the rows after the part's position, checked as those of a publish."""
    from deliveries.publish.request import read_published_messages
    from deliveries.rules.payload import NewMessage
    from pushhub.common.errors import PushHubError

    for count, row in enumerate(rows, start=1):
        position = row.get("position", count)
        if position <= part.position:
            continue
        attributes = {name: value for name, value in row["attributes"] or () if value is not None}
        message = NewMessage(row["data"] or b"", attributes, row["ordering_key"] or "")
        if "position" in row:
            yield position, message  # it was checked when it was first published
            continue
        reason, shown = row["reason"], {"text": row["text"]}
        if not reason:
            try:
                yield position, read_published_messages([message])[0]
                continue
            except PushHubError as error:
                shown = {"data": message.data[:1000].decode(errors="replace"), "attributes": message.attributes}
                reason = error.message
        where = {name: row[name] for name in PLACE if row[name] is not None}
        reject = {"part": part.number, "row": position, "reason": reason, **where, **shown}
        yield position, json.dumps(reject, ensure_ascii=False)


def _size_of(item: Item) -> int:
    return len(item[1]) if isinstance(item[1], str) else item[1].size


def _publish(part: PublishPart, batch: Sequence[Item], *, topic: Any, only: int | None) -> None:
    from django.db.models import F

    from deliveries.models import PublishPart, PublishReject
    from deliveries.publish.offering import offer_all
    from deliveries.publish.storing import store_messages
    from deliveries.store.writelock import write_transaction

    messages = [item for _, item in batch if not isinstance(item, str)]
    rejects = [PublishReject(part=part, row=row, line=item) for row, item in batch if isinstance(item, str)]
    position = batch[-1][0]
    with write_transaction():
        moved = PublishPart.objects.filter(pk=part.pk, position=part.position).update(
            position=position,
            published=F("published") + len(messages),
            rejected=F("rejected") + len(rejects),
        )
        if not moved:
            raise RuntimeError(f"part {part.number} is being published by another attempt of this task")
        published = store_messages(topic=topic, messages=messages, only=only) if messages else None
        PublishReject.objects.bulk_create(rejects)
    part.position = position
    if published is not None:
        offer_all([published])
