"""Publishing in bulk from Spark, each message at most once a job: what replay and ingest have in common.

Spark reads, filters and sorts; this process publishes a batch and moves the job's position in one transaction, so that
a job that was killed goes on where it was, and nothing is published twice under one job id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from django.db import transaction

from deliveries.models import PublishJob
from deliveries.publishing import messages_store
from deliveries.rules.payload import NewMessage
from deliveries.turns import write_transaction
from pushhub.clock import utcnow
from pushhub.errors import FailedPrecondition
from subscriptions.models import Topic

BATCH = 1000
BATCH_BYTES = 10_000_000
#: A message, the position once it is published, and how many rows were refused before it.
Item = tuple[NewMessage | None, int]


def job_begin(*, job_id: str, kind: str, spec: dict[str, Any]) -> PublishJob:
    """The job of this id, made or found where it was left; FailedPrecondition if it was asked for something else."""
    with transaction.atomic():
        job, _ = PublishJob.objects.get_or_create(job_id=job_id, defaults={"kind": kind, "spec": spec})
    if (job.kind, job.spec) != (kind, spec):
        raise FailedPrecondition(f"The {job.kind} {job_id} was asked for something else; choose another --id.")
    return job


def job_run(
    job: PublishJob,
    items: Iterable[Item],
    *,
    topic: Topic,
    only: int | None = None,
    rate: int = 0,
    progress: Callable[[PublishJob], object] = lambda _: None,
) -> None:
    """Publish all items from the job's position on, at most `rate` a second; an item without a message is a reject."""
    if topic.schema_settings:
        raise FailedPrecondition(f"{topic.name} has a schema, which bulk publishing does not check.")
    began, done = time.monotonic(), 0
    batch: list[Item] = []
    size = 0
    limit = min(BATCH, rate) if rate else BATCH
    for item in items:
        batch.append(item)
        size += len(item[0].data) if item[0] is not None else 0
        if len(batch) < limit and size < BATCH_BYTES:
            continue
        done += _publish(job, batch, topic=topic, only=only)
        batch, size = [], 0
        progress(job)
        if rate:
            time.sleep(max(began + done / rate - time.monotonic(), 0.0))
    if batch:
        _publish(job, batch, topic=topic, only=only)
    job.finished_at = utcnow()
    job.save(update_fields=["finished_at"])
    progress(job)


def _publish(job: PublishJob, batch: Sequence[Item], *, topic: Topic, only: int | None) -> int:
    messages = [message for message, _ in batch if message is not None]
    with write_transaction():
        published = messages_store(topic=topic, messages=messages, only=only) if messages else None
        job.position = batch[-1][1]
        job.published += len(messages)
        job.rejected += len(batch) - len(messages)
        job.save(update_fields=["position", "published", "rejected"])
    if published is not None:
        published.offer()
    return len(messages)
