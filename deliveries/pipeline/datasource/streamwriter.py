"""Publishes each batch of a stream once. A batch is a job of its own, named after the query and the batch's number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark

from deliveries.pipeline.datasource.writer import Published, finish, job_of, publish_partition, task_of
from deliveries.pipeline.publishing.parts import Task
from deliveries.pipeline.service import Service
from pushhub.common.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

#: The local properties in which Spark's tasks find the query and the batch.
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
#: Rows that are made into an Arrow batch where Spark has no Arrow writer for streams.
BATCH_ROWS = 1_000
HAS_ARROW = hasattr(spark, "DataSourceStreamArrowWriter")
_WRITER: type = spark.DataSourceStreamArrowWriter if HAS_ARROW else spark.DataSourceStreamWriter  # Spark 4.0


class StreamPublisher(_WRITER):
    """Publishes the batches of a stream, each as a job of its own."""

    def __init__(self, task: Task, *, topic: str) -> None:
        self._task = task
        self._topic = topic

    def write(self, iterator: Iterator[Any]) -> Published:
        """Publish a partition of a batch. Spark 4.0 gives its rows one by one, and later releases Arrow batches."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(QUERY), context.getLocalProperty(BATCH)
        self._task.service.enter()
        job = job_of(f"stream {query} {batch}", kind="stream", topic=self._topic)
        if job.finished_at is not None:
            # The whole batch is published. Its partitions may be others than at that time.
            for _ in iterator:
                pass
            return Published(job.pk)
        return publish_partition(iterator if HAS_ARROW else batches_of(iterator), replace(self._task, job=job.pk))

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Mark the batch as done, and forget the batches before it: Spark repeats only the last one."""
        self._task.service.enter()
        from deliveries.models import PublishJob

        for pk in {message.job for message in messages if isinstance(message, Published)}:
            query = finish(pk).job_id.rpartition(" ")[0]
            PublishJob.objects.filter(job_id__startswith=f"{query} ", pk__lt=pk).delete()

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Keep what is published: when Spark repeats the batch, it continues from there."""


def batches_of(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Return rows of messages as Arrow batches."""
    import pyarrow as pa

    text = pa.string()
    kinds = {"data": pa.binary(), "attributes": pa.map_(text, text), "ordering_key": text}
    while chunk := [row.asDict() for row in islice(rows, BATCH_ROWS)]:
        yield pa.RecordBatch.from_pylist(chunk, schema=pa.schema([(name, kinds[name]) for name in chunk[0]]))


def stream_publisher(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool, service: Service | None
) -> StreamPublisher:
    """Return the writer that publishes a stream."""
    if overwrite:
        raise InvalidArgument('A topic is written to in the output mode "append".', field="outputMode")
    if options.get("id"):
        raise InvalidArgument("A stream's checkpoint says what is published: give no id.", field="id")
    return StreamPublisher(task_of(options, schema, service), topic=options["topic"])
