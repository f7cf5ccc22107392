"""`manage.py pipeline ingest SOURCE --topic T`: publishes the rows of files."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from deliveries.pipeline.jobs import ingest, sources
from deliveries.pipeline.jobs.messages import Columns
from deliveries.pipeline.jobs.reading import Reading, read_files
from deliveries.pipeline.jobs.rows import USUAL, Dialect
from deliveries.pipeline.publishing.parts import parts_for
from deliveries.pipeline.publishing.publishjobs import (
    Progress,
    Target,
    bar,
    begin_job,
    check_rate,
    divide_job,
    done_before,
    failure_noted,
    parts_left,
    progress_of,
    run_job,
    write_rejects,
)
from deliveries.pipeline.session import command_session
from deliveries.telemetry.runs import Kind, Run, error_line, running
from pushhub.common.errors import FailedPrecondition
from pushhub.common.stores import is_remote
from subscriptions.selectors import get_topic

Result = TypeVar("Result")

HELP = "Publish the rows of Parquet, Avro, CSV or JSON files to a topic."


def words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("source", help="a file, a folder or a pattern; files are taken in the order of their names")
    parser.add_argument("--topic", required=True, help="projects/shop/topics/orders")
    parser.add_argument("--format", dest="form", choices=sources.FORMATS, default="parquet")
    parser.add_argument("--data-column", default="", help="the message's data; the default is the whole row in JSON")
    parser.add_argument(
        "--attributes",
        type=words,
        default=[],
        help="names of columns, separated by commas; a map is an attribute for each entry",
    )
    parser.add_argument("--ordering-key-column", default="")
    parser.add_argument("--delimiter", default=USUAL.delimiter, help="of CSV: the character between two fields")
    parser.add_argument("--quote", default=USUAL.quote, help='of CSV: the quote around fields; "" for none')
    parser.add_argument(
        "--null", default=USUAL.null, help="of CSV: the text of a field without a value; the default is empty"
    )
    encoding = "of CSV and JSON; the default is UTF-8"
    parser.add_argument("--encoding", type=str.lower, default=USUAL.encoding, help=encoding)
    parser.add_argument(
        "--multi-line", action="store_true", help="of JSON: objects take several lines, or are the elements of an array"
    )
    parser.add_argument(
        "--malformed",
        choices=("reject", "stop"),
        default="reject",
        help="a malformed row of CSV or JSON goes to the rejects, or stops the job before anything is published",
    )
    parser.add_argument(
        "--in-order", action="store_true", help="publish all rows one after the other, in the order of the files"
    )
    parser.add_argument("--rate", type=int, default=0, help="the most messages per second")
    parser.add_argument(
        "--rejects", default="", help="the file for rows that cannot be published; the default is SOURCE.rejected"
    )
    parser.add_argument(
        "--id", default="", help="no row is published twice under one id; the default is made from the files' content"
    )


def run(**options: Any) -> None:
    with running(Kind.INGEST) as noted:
        _ingest(noted, **options)


def _ingest(
    noted: Run, *, stdout: TextIO, stderr: TextIO, source: str, form: str, rate: int, in_order: bool, **options: Any
) -> None:
    check_rate(rate)
    topic = get_topic(name=options["topic"], field="topic")
    columns = Columns(options["data_column"], options["attributes"], options["ordering_key_column"])
    syntax = {name: options[name] for name in ("delimiter", "quote", "null", "encoding", "multi_line")}
    dialect = Dialect(**syntax, is_strict=options["malformed"] == "stop")
    ingest.check_dialect(dialect, form=form)
    files = sources.files_of(source, form=form)
    base = sources.base_of(source, files)
    heads = sources.heads_of(files, form=form, dialect=dialect)
    sources.check_columns(files, heads, form=form, columns=columns, base=base)
    session = command_session("ingest")
    content, spans = _planned(partial(sources.survey, session, files, heads, form=form, multi_line=dialect.multi_line))
    parts = ingest.parts_of(files, spans, in_order=in_order)
    reading = Reading(form, columns, dialect, base, sources.folder_kinds(files, base) if form == "parquet" else {})
    spec = {
        **{"source": source, "topic": topic.name, "format": form, "unordered": not in_order, "content": content},
        **{"data": columns.data, "attributes": list(columns.attributes), "key": columns.ordering_key},
        **dialect.options(),
    }
    job = begin_job(job_id=options["id"] or _id(source, topic.name, content), kind="ingest", spec=spec)
    path = Path(options["rejects"] or _rejects_beside(source))
    if job.finished_at is not None:
        noted.job_id = job.job_id
        write_rejects(job, path)  # a kill may have come before
        stdout.write(done_before(job))
        return
    is_keyed = bool(columns.ordering_key) and not in_order
    if job.parts is None:
        with failure_noted(job, noted):
            total = _planned(partial(ingest.count_rows, session, parts, heads, reading))
        divide_job(job, [(0, None)] * (parts_for(total) if is_keyed else len(parts)), total=total)
    if not is_keyed and job.parts != len(parts):
        raise FailedPrecondition(
            f"{source} was in {job.parts} parts when {job.job_id} began, and is in {len(parts)} now."
        )

    def show(now: Progress) -> None:
        line = bar(now.published + now.rejected, job.total or 0)
        stderr.write(f"\r{line}, {now.rejected:,} rejected", ending="")  # type: ignore[call-arg]

    left = {part.number for part in parts_left(job)}
    with failure_noted(job, noted):
        if not left:
            frame = None
        elif is_keyed:
            frame = ingest.keyed_frame(session, parts, reading, count=job.parts or 0, left=sorted(left))
        else:
            todo = [part for part in parts if part.number in left]
            frame = ingest.spans_frame(session, todo, in_order=in_order)
        read = iter if is_keyed else partial(read_files, reading=reading)
        run_job(job, frame, session=session, target=Target(topic, rate=rate), in_order=in_order, show=show, read=read)
        write_rejects(job, path)
    stderr.write("")
    done = progress_of(job)
    where = f": see {path}" if done.rejected else ""
    stdout.write(f"published {done.published:,} messages, rejected {done.rejected:,}{where}")


def _rejects_beside(source: str) -> str:
    """Return the default file of rejects: beside the source, or in the working folder for files of a bucket."""
    beside = Path(source).name if is_remote(source) else source.rstrip("/")
    return f"{beside}{sources.REJECTED_SUFFIX}"


def _planned(read: Callable[[], Result]) -> Result:
    """Read the files before anything is published. Raises FailedPrecondition, for instance for a malformed row."""
    try:
        return read()
    except Exception as error:
        raise FailedPrecondition(f"{error_line(error)}; nothing was published.") from error


def _id(source: str, topic: str, content: str) -> str:
    """Return the job's default id. It depends on the content, so a file that was replaced is another job."""
    return f"ingest {Path(source).name[:32]} {topic.rpartition('/')[2][:32]} {content[:16]}"
