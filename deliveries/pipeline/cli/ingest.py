"""`manage.py pipeline ingest SOURCE --topic T`: rows of files, published."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any, TextIO

from django.conf import settings

from deliveries.models import PublishJob
from deliveries.pipeline import ingest
from deliveries.pipeline.publishjobs import job_begin, job_run
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

    def show(job: PublishJob) -> None:
        stderr.write(f"\r{job.published:,} published, {job.rejected:,} rejected", ending="")  # type: ignore[call-arg]

    with Rejects(path) as rejects:
        items = ingest.items(messages, position=job.position, reject=rejects.add)
        job_run(job, items, topic=topic, rate=rate, progress=show)
    stderr.write("")
    stdout.write(
        f"published {job.published:,} messages, rejected {job.rejected:,}" + (f": see {path}" if job.rejected else "")
    )


def _rows(session: Any, source: str, form: str) -> Any:
    from pyspark.errors import AnalysisException

    try:
        return ingest.rows_read(session, source=source, form=form)
    except AnalysisException as error:
        raise InvalidArgument(f"{source} cannot be read as {form}: {error.getCondition()}", field="source") from None


class Rejects:
    """A side file that comes into being with its first line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIO | None = None

    def __enter__(self) -> Rejects:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, line: str) -> None:
        if self._file is None:
            try:
                self._file = self._path.open("a", encoding="utf-8")
            except OSError as error:
                raise FailedPrecondition(f"--rejects {self._path}: {error.strerror}") from None
        self._file.write(line + "\n")
