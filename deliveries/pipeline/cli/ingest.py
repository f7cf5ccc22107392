"""`manage.py pipeline ingest SOURCE --topic T`: rows of files, published."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings

from deliveries.pipeline import ingest
from deliveries.pipeline.publishjobs import (
    Progress,
    Target,
    bar,
    failure_noted,
    job_begin,
    job_divide,
    job_run,
    parts_left,
    progress_of,
    rejects_write,
)
from deliveries.pipeline.session import spark_session
from pushhub.errors import FailedPrecondition, InvalidArgument
from subscriptions.selectors import topic_get

HELP = "Publish the rows of Parquet, CSV or JSON files to a topic."


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or a pattern that Spark reads")
    parser.add_argument("--topic", required=True, help="projects/shop/topics/orders")
    parser.add_argument("--format", dest="form", choices=ingest.FORMATS, default="parquet")
    parser.add_argument("--data-column", default="", help="the message's data; without it the whole row in JSON")
    parser.add_argument("--attributes", type=words, default=[], help="columns that become attributes, with commas")
    parser.add_argument("--ordering-key-column", default="")
    parser.add_argument("--rate", type=int, default=0, help="at most so many messages a second")
    parser.add_argument("--rejects", default="", help="what cannot be published, with the reason; else SOURCE.rejected")
    parser.add_argument("--id", default="", help="under one id no row is published twice; without it, made of the rest")


def run(*, stdout: TextIO, stderr: TextIO, source: str, form: str, rate: int, **options: Any) -> None:
    topic = topic_get(name=options["topic"], field="topic")
    session = spark_session(
        "pushhub ingest", master=settings.SPARK_MASTER, memory=settings.SPARK_MEMORY, extra=settings.SPARK_CONF
    )
    messages = ingest.messages_of(
        _rows(session, source, form),
        data_column=options["data_column"],
        attribute_columns=options["attributes"],
        ordering_key_column=options["ordering_key_column"],
    )
    spec = {
        "source": source,
        "topic": topic.name,
        "format": form,
        "data": options["data_column"],
        "attributes": options["attributes"],
        "key": options["ordering_key_column"],
    }
    job = job_begin(job_id=options["id"] or f"ingest {source} {topic.name}"[:100], kind="ingest", spec=spec)
    path = Path(options["rejects"] or f"{source.rstrip('/')}.rejected")
    if options["ordering_key_column"]:
        # Rows of one key must go out in their order.
        messages = messages.coalesce(1)
    count = messages.rdd.getNumPartitions()
    if job.parts is None:
        job_divide(job, [(0, None)] * count, total=messages.count())
    if job.parts != count:
        raise FailedPrecondition(f"{source} was in {job.parts} parts when {job.job_id} began, and is in {count} now.")

    def show(now: Progress) -> None:
        shown = bar(now.published + now.rejected, job.total or 0)
        stderr.write(f"\r{shown}, {now.rejected:,} rejected", ending="")  # type: ignore[call-arg]

    frames = [(None, messages)] if parts_left(job) else []
    with failure_noted(job):
        job_run(job, frames, session=session, target=Target(topic, rate=rate), in_order=False, show=show)
        rejects_write(job, path)
    stderr.write("")
    done = progress_of(job)
    where = f": see {path}" if done.rejected else ""
    stdout.write(f"published {done.published:,} messages, rejected {done.rejected:,}{where}")


def _rows(session: Any, source: str, form: str) -> Any:
    from pyspark.errors import AnalysisException

    try:
        return ingest.rows_read(session, source=source, form=form)
    except AnalysisException as error:
        raise InvalidArgument(f"{source} cannot be read as {form}: {error.getCondition()}", field="source") from None
