"""Publishes the batches of a stream, each once, and each as a job of its own that the query and its number name."""

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

#: What Spark calls the query and the batch where a task asks.
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
        """Note that the batch is done, and forget those before it: Spark repeats the last one only."""
        self._task.service.enter()
        from deliveries.models import PublishJob

        for pk in {message.job for message in messages if isinstance(message, Published)}:
            query = finish(pk).job_id.rpartition(" ")[0]
            PublishJob.objects.filter(job_id__startswith=f"{query} ", pk__lt=pk).delete()

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Keep what is published: the batch goes on from there."""


def stream_publisher(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, service: Service | None
) -> StreamPublisher:
    """Return what publishes a stream."""
    if overwrite:
        raise InvalidArgument('A topic is written to in the output mode "append".', field="outputMode")
    if options.get("id"):
        raise InvalidArgument("A stream's checkpoint says what is published: give no id.", field="id")
    return StreamPublisher(task_of(options, schema, service), topic=options["topic"])
