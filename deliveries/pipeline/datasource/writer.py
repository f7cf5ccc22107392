"""Publishes each row of a frame once: one transaction publishes a batch and moves the task's position in its rows.

A task that is run again continues from its position. So does a write that is started again under the same `id`, if its
rows are in the same partitions and in the same order. The tasks reach the database with the driver's settings. These
are not options, because Spark shows options.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.publishing.parts import Pace, Row, Task, publish_part
from deliveries.pipeline.service import Service
from pushhub.common.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from deliveries.models import PublishJob

KNOWN = frozenset({"topic", "id", "path", "checkpointlocation", "queryname"})
#: The columns that are published. `data` must be there.
TYPES: Mapping[str, str] = {"data": "binary", "attributes": "map<string,string>", "ordering_key": "string"}
#: A driver without any of these would take a new, empty database for PushHub's.
NEEDED = ("PUSHHUB_DATABASE_URL", "PUSHHUB_DATABASE_URL_FILE", "PUSHHUB_DATA")


@dataclass
class Published(spark.WriterCommitMessage):
    """The job for which a task has published. The database knows the rest."""

    job: int


class Publisher(spark.DataSourceArrowWriter):
    """Publishes a frame, with its partitions as the parts of a job."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish_partition(iterator, self._task)

    def commit(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        self._task.service.enter()
        finish(self._task.job)


def publisher(options: Mapping[str, str], schema: StructType, *, overwrite: bool, service: Service | None) -> Publisher:
    """Return the writer that publishes a frame. Spark calls this in a process of its own on the driver's machine."""
    if overwrite:
        raise InvalidArgument('A topic cannot be overwritten: give mode("append").', field="mode")
    task = task_of(options, schema, service)
    job = job_of(options.get("id") or f"write {uuid.uuid4().hex}", kind="write", topic=options["topic"])
    return Publisher(replace(task, job=job.pk))


def publish_partition(batches: Iterator[pa.RecordBatch], task: Task) -> Published:
    """Publish a partition as the part with the same number."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    task.service.enter()
    from django.db import connection

    number = context.partitionId()
    try:
        publish_part(_rows(batches, number), task=task, number=number, pace=Pace(task.rate), done=0)
    finally:
        connection.close()
    return Published(task.job)


def _rows(batches: Iterator[pa.RecordBatch], number: int) -> Iterator[Row]:
    for batch in batches:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for index in range(batch.num_rows):
            yield number, columns, index


def task_of(options: Mapping[str, str], schema: StructType, service: Service | None) -> Task:
    if unknown := sorted(name for name in options if name.lower() not in KNOWN):
        raise InvalidArgument(f"There is no option {unknown[0]!r}.", field=unknown[0])
    if not options.get("topic"):
        raise InvalidArgument('Give the topic: option("topic", "projects/shop/topics/orders").', field="topic")
    _require_columns(schema)
    service = service or _service_of_environment()
    service.enter()
    from subscriptions.selectors import get_topic

    topic = get_topic(name=options["topic"], field="topic")
    if topic.schema_settings:
        raise FailedPrecondition(f"{topic.name} has a schema, which bulk publishing does not check.")
    return Task(service, 0, topic.pk, None, 0, is_open=True)


def _service_of_environment() -> Service:
    """Return the service whose settings this process has in its environment."""
    if not any(os.environ.get(name) for name in NEEDED):
        raise FailedPrecondition(
            "The driver does not know PushHub's database: set PUSHHUB_DATABASE_URL, PUSHHUB_REDIS_URL and "
            "PUSHHUB_SECRET_KEY in its environment before Spark starts."
        )
    Service({"DJANGO_SETTINGS_MODULE": "pushhub.settings"}).enter()
    return Service.here(journal=False)


def _require_columns(schema: StructType) -> None:
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "data" not in types:
        raise InvalidArgument("The frame has no column 'data', which is the data of a message.", field="data")
    for name, kind in types.items():
        if name not in TYPES:
            raise InvalidArgument(
                f"The column {name!r} is not part of a message: select {', '.join(TYPES)}.", field=name
            )
        if kind != TYPES[name]:
            raise InvalidArgument(f"The column {name!r} must be {TYPES[name]}, but is {kind}.", field=name)


def job_of(job_id: str, *, kind: str, topic: str) -> PublishJob:
    from deliveries.pipeline.publishing.publishjobs import begin_job

    return begin_job(job_id=job_id, kind=kind, spec={"topic": topic})


def finish(job: int) -> Any:
    from deliveries.models import PublishJob, PublishPart
    from deliveries.store.writelock import write_transaction
    from pushhub.common.clock import utcnow

    with write_transaction():
        parts = PublishPart.objects.filter(job=job)
        PublishJob.objects.filter(pk=job).update(finished_at=utcnow(), parts=parts.count())
    return PublishJob.objects.get(pk=job)
