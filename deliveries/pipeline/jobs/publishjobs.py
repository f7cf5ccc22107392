"""Publishing in bulk from Spark's executors, each message at most once a job: what replay and ingest have in common.

This process divides the work, watches how far it has come and gathers the rejects; the tasks publish (parts.py).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.db import connection, transaction
from django.db.models import Sum

from deliveries.models import PublishJob, PublishPart, PublishReject
from deliveries.pipeline.jobs.parts import TAKEN, Task, publish
from deliveries.pipeline.service import Service
from pushhub.common.clock import utcnow
from pushhub.common.errors import FailedPrecondition, NotFound, PushHubError, clipped
from subscriptions.models import Topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRESS_SECONDS = 0.5
BAR_WIDTH = 30
PYTHON_ERROR = re.compile(r"(?!org\.|java\.|scala\.)[A-Za-z_][\w.]*(?:Error|Exception|DoesNotExist): ")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job has come."""

    published: int
    rejected: int


@dataclass(frozen=True, slots=True)
class Target:
    """Who gets the messages, and how fast: `rate` messages a second, or 0."""

    topic: Topic
    only: int | None = None
    rate: int = 0


def bar(done: int, total: int) -> str:
    """A line that shows how far something is, for a terminal."""
    share = min(done / total, 1.0) if total else 1.0
    filled = int(share * BAR_WIDTH)
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {share:4.0%}  {done:,} of {total:,}"


def job_begin(*, job_id: str, kind: str, spec: dict[str, Any]) -> PublishJob:
    """The job of this id, made or found where it was left; FailedPrecondition if it was asked for something else."""
    with transaction.atomic():
        job, _ = PublishJob.objects.get_or_create(job_id=job_id, defaults={"kind": kind, "spec": spec})
    if (job.kind, job.spec) != (kind, spec):
        raise FailedPrecondition(f"The {job.kind} {job_id} was asked for something else; choose another --id.")
    return job


def job_find(job_id: str) -> PublishJob:
    job = PublishJob.objects.filter(job_id=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {clipped(job_id)}.")
    return job


@contextmanager
def failure_noted(job: PublishJob) -> Iterator[None]:
    """Keep with the job why its run ended early; that of the run before is forgotten."""
    PublishJob.objects.filter(pk=job.pk).update(failure="")
    try:
        yield
    except BaseException as error:
        PublishJob.objects.filter(pk=job.pk).update(failure=shown(error) or type(error).__name__)
        raise


def job_divide(job: PublishJob, ends: Sequence[tuple[int, int | None]], *, total: int) -> None:
    """Divide a job of so many messages into parts, each from behind a position to another, once and for all."""
    with transaction.atomic():
        found = PublishJob.objects.select_for_update().get(pk=job.pk)
        if found.parts is None:
            PublishPart.objects.bulk_create(
                PublishPart(job=job, number=number, position=after, until=until)
                for number, (after, until) in enumerate(ends)
            )
            PublishJob.objects.filter(pk=job.pk).update(parts=len(ends), total=total)
    job.refresh_from_db()


def parts_left(job: PublishJob) -> list[PublishPart]:
    return list(PublishPart.objects.filter(job=job, finished=False).order_by("number"))


def progress_of(job: PublishJob) -> Progress:
    sums = PublishPart.objects.filter(job=job).aggregate(published=Sum("published"), rejected=Sum("rejected"))
    return Progress(sums["published"] or 0, sums["rejected"] or 0)


def job_run(
    job: PublishJob,
    frames: Sequence[tuple[int | None, DataFrame]],
    *,
    session: SparkSession,
    target: Target,
    in_order: bool,
    show: Callable[[Progress], object] = lambda _: None,
) -> None:
    """Publish frames with columns of TAKEN, each as the part of its number.

    Without a number the column `part` has the parts of a frame, or its partitions are the parts. `in_order` publishes
    one frame after the other. There is nothing left of the job when it returns.
    """
    if target.topic.schema_settings:
        raise FailedPrecondition(f"{target.topic.name} has a schema, which bulk publishing does not check.")
    at_once = 1 if in_order else _at_once(session)
    # So many tasks run at a time, and share the rate.
    tasks = max(min(at_once, len(parts_left(job))), 1)
    service = Service.here(journal=str(session.sparkContext.master).partition("[")[0] == "local")
    task = Task(service, job.pk, target.topic.pk, target.only, target.rate / tasks)
    try:
        _run_all([partial(_run_frame, frame, task, number) for number, frame in frames], at_once, job, show)
    except Exception as error:
        session.sparkContext.cancelAllJobs()
        raise FailedPrecondition(f"{shown(error)}; run it again and it goes on from there.") from error
    # A part of which nothing was left has no task that would have said so.
    PublishPart.objects.filter(job=job).update(finished=True)
    PublishJob.objects.filter(pk=job.pk).update(finished_at=utcnow())
    job.refresh_from_db()


def rejects_write(job: PublishJob, path: Path) -> None:
    """Move a finished job's rejects to a file, a line each."""
    rows = PublishReject.objects.filter(part__job=job)
    if not rows.exists():
        return
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in rows.values_list("line", flat=True).iterator())
    except OSError as error:
        raise FailedPrecondition(f"--rejects {path}: {error.strerror}") from None
    rows.delete()


def shown(error: BaseException) -> str:
    """Return one line about an error. Spark wraps an error of a task in the traces of two languages."""
    if isinstance(error, PushHubError):
        return error.message
    lines = [line for line in str(error).splitlines() if PYTHON_ERROR.match(line)]
    return clipped(lines[-1] if lines else f"{type(error).__name__}: {error}".splitlines()[0])


def _at_once(session: SparkSession) -> int:
    """How many tasks the session's executors run at a time."""
    return max(int(session.sparkContext.defaultParallelism), 1)


def _run_frame(frame: DataFrame, task: Task, number: int | None) -> None:
    """One job of Spark's, from a thread of its own."""
    wanted = [name for name in TAKEN if name in frame.columns]
    frame.select(*wanted).mapInArrow(partial(publish, task=task, number=number), "nothing string").count()


def _run_all(
    jobs: Sequence[Callable[[], None]], at_once: int, job: PublishJob, show: Callable[[Progress], object]
) -> None:
    """Run them, some at once, and tell of the progress; the first error is raised when the others have ended."""
    stopping = threading.Event()

    def run(one: Callable[[], None]) -> None:
        try:
            if not stopping.is_set():
                one()
        except BaseException:
            stopping.set()
            raise
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="part") as pool:
        running: set[Future[None]] = {pool.submit(run, one) for one in jobs}
        try:
            while running:
                done, running = wait(running, timeout=PROGRESS_SECONDS, return_when=FIRST_COMPLETED)
                show(progress_of(job))
                for future in done:
                    future.result()
        finally:
            stopping.set()
    show(progress_of(job))
