"""Bulk publishing from Spark's executors, for replay and ingest. A job publishes each message at most once.

This process divides the work, shows the progress and collects the rejects. The tasks publish (parts.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction
from django.db.models import Sum

from deliveries.models import PublishJob, PublishPart, PublishReject
from deliveries.pipeline.publishing.parts import Task, publish
from deliveries.pipeline.service import Service
from deliveries.telemetry.runs import Run, error_line
from pushhub.common.background import BackgroundThread
from pushhub.common.clock import time_text, utcnow
from pushhub.common.databases import iterate_rows
from pushhub.common.errors import FailedPrecondition, InvalidArgument, NotFound, clipped
from pushhub.common.rows import row_or_none
from pushhub.common.stores import rewritten_file
from subscriptions.models import Topic
from subscriptions.transforms.functions import functions_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRESS_SECONDS = 0.5
BAR_WIDTH = 30
#: A job's id is a word of command lines, where one that begins with `-` would be read as an option.
JOB_ID = re.compile(r"\A[^\W_].{0,99}\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Progress:
    """The messages that a job has published, and the rows that it has rejected."""

    published: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Target:
    """Who gets the messages, and how fast: `rate` is in messages per second, and 0 is no limit."""

    topic: Topic
    only: int | None = None
    rate: int = 0


def check_rate(rate: int) -> None:
    if rate < 0:
        raise InvalidArgument("--rate: give a number of messages a second, or 0 for as fast as it goes.", field="rate")


def bar(done: int, total: int) -> str:
    """Return a progress bar for a terminal."""
    share = min(done / total, 1.0) if total else 1.0
    filled = int(share * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}  {done:,} of {total:,}"


def begin_job(*, job_id: str, kind: str, spec: dict[str, Any]) -> PublishJob:
    """Return the job of this id, or create it. Raises FailedPrecondition if the id belongs to another request."""
    if not JOB_ID.match(job_id):
        raise InvalidArgument("--id: give up to 100 characters, the first one a letter or a digit.", field="id")
    with transaction.atomic():
        job, _ = PublishJob.objects.get_or_create(job_id=job_id, defaults={"kind": kind, "spec": spec})
    if (job.kind, job.spec) != (kind, spec):
        raise FailedPrecondition(f"The {job.kind} {job_id} was asked for something else; choose another --id.")
    return job


def find_job(job_id: str) -> PublishJob:
    """Return a job. Raises NotFound."""
    job = row_or_none(PublishJob.objects.filter(job_id=job_id))
    if job is None:
        raise NotFound(f"There is no job {clipped(job_id)}.")
    return job


def done_before(job: PublishJob) -> str:
    """Return one line about a finished job that was started again."""
    assert job.finished_at is not None
    done = progress_of(job)
    return (
        f"{job.job_id} was finished at {time_text(job.finished_at)}, so nothing is published now: it had published "
        f"{done.published:,} messages and rejected {done.rejected:,}"
    )


@contextmanager
def failure_noted(job: PublishJob, run: Run) -> Iterator[None]:
    """Store with the job why its run failed, in place of the failure of the previous run, and with the run what it did.

    A run of the pipeline may have several of these blocks.
    """
    run.job_id = job.job_id
    PublishJob.objects.filter(pk=job.pk).update(failure="")
    before = progress_of(job).published
    try:
        yield
    except BaseException as error:
        PublishJob.objects.filter(pk=job.pk).update(failure=error_line(error))
        raise
    finally:
        run.add(progress_of(job).published - before)


def divide_job(job: PublishJob, ends: Sequence[tuple[int, int | None]], *, total: int) -> None:
    """Divide a job of `total` messages into parts, once. `ends` has the position before each part and its last one."""
    with transaction.atomic():
        locked = PublishJob.objects.select_for_update().get(pk=job.pk)
        if locked.parts is None:
            PublishPart.objects.bulk_create(
                PublishPart(job=job, number=number, position=after, until=until)
                for number, (after, until) in enumerate(ends)
            )
            PublishJob.objects.filter(pk=job.pk).update(parts=len(ends), total=total)
    job.refresh_from_db()


def parts_left(job: PublishJob) -> list[PublishPart]:
    """Return the parts that are not finished, in their order."""
    return list(PublishPart.objects.filter(job=job, finished=False).order_by("number"))


def progress_of(job: PublishJob) -> Progress:
    """Return the progress of a job."""
    sums = {name: Sum(name, default=0) for name in ("published", "rejected")}
    return Progress(**PublishPart.objects.filter(job=job).aggregate(**sums))


def run_job(
    job: PublishJob,
    frame: DataFrame | None,
    *,
    session: SparkSession,
    target: Target,
    in_order: bool,
    show: Callable[[Progress], object] = lambda _: None,
    read: Callable[[Iterator[Any]], Any] = iter,
) -> None:
    """Publish what is left of a job, in one Spark job. The frame is None if nothing is left.

    `read` makes batches of rows (parts.py) of the frame's, in the task that publishes them: so they do not pass through
    Java. If `in_order`, the frame has one partition.
    """
    if target.topic.schema_settings:
        raise FailedPrecondition(f"{target.topic.name} has a schema, which bulk publishing does not check.")
    # What a replay publishes went through them when it was published first.
    if job.kind == "ingest" and functions_on(target.topic.message_transforms):
        raise FailedPrecondition(f"{target.topic.name} has message transforms, which an ingest does not apply.")
    if frame is not None:
        # Tasks that run at the same time share the rate.
        tasks = 1 if in_order or not target.rate else max(min(_slots(session), len(parts_left(job))), 1)
        service = Service.here(journal=(session.conf.get("spark.master") or "").startswith("local"))
        task = Task(service, job.pk, target.topic.pk, target.only, target.rate / tasks)
        try:
            with _shown(job, show):
                frame.mapInArrow(partial(publish, task=task, read=read), "nothing string").count()
        except Exception as error:
            raise FailedPrecondition(f"{error_line(error)}; run it again and it goes on from there.") from error
    # A part of which nothing was left had no task to mark it as finished.
    PublishPart.objects.filter(job=job).update(finished=True)
    PublishJob.objects.filter(pk=job.pk).update(finished_at=utcnow())
    job.refresh_from_db()


def write_rejects(job: PublishJob, path: Path) -> None:
    """Move the rejects of a finished job from the database to a file, a line each."""
    rows = PublishReject.objects.filter(part__job=job)
    if not rows.exists():
        return
    try:
        with rewritten_file(path) as file:
            file.writelines(f"{line}\n".encode() for (line,) in iterate_rows(rows, ["line"]))
    except OSError as error:
        raise FailedPrecondition(f"--rejects {path}: {error.strerror}") from None
    rows.delete()


def _slots(session: SparkSession) -> int:
    """Return how many tasks Spark runs at a time, which is the number of partitions into which it divides new rows."""
    from pyspark.sql import functions as f

    return int(session.range(1_000).select(f.spark_partition_id()).distinct().count())


@contextmanager
def _shown(job: PublishJob, show: Callable[[Progress], object]) -> Iterator[None]:
    """Show the progress while the block waits for Spark, and once more at its end."""

    def watch() -> None:
        if not watcher.stopping.wait(PROGRESS_SECONDS):
            show(progress_of(job))

    watcher = BackgroundThread("progress", watch, at_end=connections.close_all)
    watcher.start()
    try:
        yield
    finally:
        watcher.stop(timeout=5.0)
    show(progress_of(job))
