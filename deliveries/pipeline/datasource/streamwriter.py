"""Publishes each batch of a stream once. A batch is a job of its own, named after the query and the batch's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark

from deliveries.pipeline.datasource.writer import Published, finish, job_of, partition_publish, task_of
from deliveries.pipeline.jobs.parts import Task
from deliveries.pipeline.service import Service
from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The local properties in which Spark's tasks find the query and the batch.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StreamPublisher(spark.DataSourceStreamArrowWriter):
    """Publishes the batches of a stream, each as a job of its own."""

    def __init__(self, task: Task, *, topic: str) -> None:
        self._task = task
        self._topic = topic

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        self._task.service.enter()
        job = job_of(f"stream {query} {batch}", kind="stream", topic=self._topic)
        return partition_publish(iterator, replace(self._task, job=job.pk))

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Mark the batch as done, and forget the batches before it: Spark repeats only the last one."""
        self._task.service.enter()
        from deliveries.models import PublishJob

        for pk in {message.job for message in messages if isinstance(message, Published)}:
            query = finish(pk).job_id.rpartition(" ")[0]
            PublishJob.objects.filter(job_id__startswith=f"{query} ", pk__lt=pk).delete()

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Keep what is published: when Spark repeats the batch, it continues from there."""


def stream_publisher(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, service: Service | None
) -> StreamPublisher:
    """Return the writer that publishes a stream."""
    if overwrite:
        raise InvalidArgument('A topic is written to in the output mode "append".', field="outputMode")
    if options.get("id"):
        raise InvalidArgument("A stream's checkpoint says what is published: give no id.", field="id")
    return StreamPublisher(task_of(options, schema, service), topic=options["topic"])
