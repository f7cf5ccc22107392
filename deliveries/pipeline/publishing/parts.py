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
#: The columns of a message. A task also takes `part`, the number of the part, and `position`, the message's id in the
#: archive; without `position` it counts the rows.
COLUMNS = ("data", "attributes", "ordering_key")
#: The columns that say where a row comes from, for rejects.
PLACE = ("file", "line")
#: A row with a `reason` is rejected, and `text` is the row.
TAKEN = ("part", "position", *COLUMNS, *PLACE, "reason", "text")

#: The position, the message or None, and for None the line of the rejects.
Item = tuple[int, "NewMessage | None", str]
#: The part of a row, the columns of its batch, and its index in them.
Row = tuple[int, Mapping[str, Sequence[Any]], int]


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
        #: Messages per batch, at most as many as the rate allows in one second.
        self.size = max(min(BATCH, int(rate)), 1) if rate else BATCH

    def wait(self, done: int) -> None:
        """Sleep until `done` messages were allowed."""
        if self._rate and (early := self._began + done / self._rate - self._clock()) > 0:
            self._sleep(early)


def publish(
    batches: Iterator[pa.RecordBatch], *, task: Task, read: Callable[[Iterator[pa.RecordBatch]], Any] = iter
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: publish the rows as the parts of the job that their column `part` names.

    `read` returns the batches of rows with columns of TAKEN. Rows of a part come one after the other.
    """
    task.service.enter()
    from django.db import connection

    from deliveries.telemetry.sinks.counters import counters

    pace, done = Pace(task.rate), 0
    try:
        for part, rows in groupby(_rows(read(batches)), key=itemgetter(0)):
            done = publish_part(rows, task=task, number=part, pace=pace, done=done)
    finally:
        connection.close()
        if process_counters := counters():
            process_counters.flush()  # Spark may kill this process at any time now
    return iter(())


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in TAKEN if name in batch.schema.names}
        for index, part in enumerate(columns["part"]):
            yield part, columns, index


def publish_part(rows: Iterable[Row], *, task: Task, number: int, pace: Pace, done: int) -> int:
    """Publish a part. `done` is the number of rows that this task published before; return the new number."""
    from deliveries.models import PublishPart
    from subscriptions.models import Topic

    part = PublishPart.objects.get(job=task.job, number=number)
    topic = Topic.objects.select_related("project").get(pk=task.topic)
    for batch in gather(_items(rows, part), most=pace.size, size_of=_size_of, size=BATCH_BYTES):
        done += _publish(part, batch, topic=topic, only=task.only)
        pace.wait(done)
    PublishPart.objects.filter(pk=part.pk).update(finished=True)
    return done


def _message(row: Row) -> NewMessage:
    from deliveries.rules.payload import NewMessage

    _, columns, index = row
    data, attributes, key = (columns[name][index] if name in columns else None for name in COLUMNS)
    return NewMessage(data or b"", {name: value for name, value in attributes or () if value is not None}, key or "")


def _items(rows: Iterable[Row], part: PublishPart) -> Iterator[Item]:
    """Yield the rows after the part's position, checked as those of a publish."""
    from deliveries.publish.request import read_published_messages
    from pushhub.common.errors import PushHubError

    position = 0
    for row in rows:
        _, columns, index = row
        position = columns["position"][index] if "position" in columns else position + 1
        if position <= part.position:
            continue
        message = _message(row)
        if "position" in columns:
            yield position, message, ""  # it was checked when it was first published
            continue
        where = {name: columns[name][index] for name in PLACE if name in columns and columns[name][index] is not None}
        if "reason" in columns and (reason := columns["reason"][index]):
            yield position, None, _line(part.number, position, reason, where | {"text": columns["text"][index]})
            continue
        try:
            yield position, read_published_messages([message])[0], ""
        except PushHubError as error:
            shown = {"data": message.data[:1000].decode(errors="replace"), "attributes": message.attributes}
            yield position, None, _line(part.number, position, error.message, where | shown)


def _size_of(item: Item) -> int:
    _, message, reject = item
    return message.size if message is not None else len(reject)


def _publish(part: PublishPart, batch: Sequence[Item], *, topic: Any, only: int | None) -> int:
    from django.db.models import F

    from deliveries.models import PublishPart, PublishReject
    from deliveries.publish.offering import offer_all
    from deliveries.publish.storing import store_messages
    from deliveries.store.writelock import write_transaction

    messages = [message for _, message, _ in batch if message is not None]
    rejects = [
        PublishReject(part=part, row=position, line=line) for position, message, line in batch if message is None
    ]
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
    return len(batch)


def _line(part: int, row: int, reason: str, more: Mapping[str, Any]) -> str:
    return json.dumps({"part": part, "row": row, "reason": reason, **more}, ensure_ascii=False)
