"""Ingest publishes the rows of files as messages of a topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from deliveries.pipeline.jobs.messages import RowError
from deliveries.pipeline.jobs.reading import SCHEMA, Reading, read_files
from deliveries.pipeline.jobs.rows import Dialect
from deliveries.pipeline.jobs.spans import WHOLE, Head, Span
from deliveries.pipeline.publishing.parts import part_of_key
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import AnyFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def check_dialect(dialect: Dialect, *, form: str) -> None:
    """Raise InvalidArgument for an option that the format does not have, or that cannot be used."""
    options = set(dialect.options())
    if form != "csv" and (wrong := sorted(options & {"delimiter", "quote", "null"})):
        raise InvalidArgument(f"--{wrong[0]} goes with --format csv only.", field=wrong[0])
    if form != "json" and dialect.multi_line:
        raise InvalidArgument("--multi-line goes with --format json only.", field="multi_line")
    if form not in ("csv", "json") and options:
        raise InvalidArgument("--encoding and --malformed go with CSV and JSON only.", field="format")
    try:
        dialect.check()
    except RowError as error:
        raise InvalidArgument(f"{error}.", field="dialect") from None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an ingest: a file, or a span of it."""

    number: int
    path: AnyFile
    span: Span


def parts_of(files: Sequence[AnyFile], spans: Sequence[Sequence[Span]], *, in_order: bool) -> list[Part]:
    """Divide files, which have these spans, into parts, in their order. `in_order`, a part is a file."""
    pairs = [(path, span) for path, own in zip(files, spans, strict=True) for span in ([WHOLE] if in_order else own)]
    return [Part(number, path, span) for number, (path, span) in enumerate(pairs)]


def messages_frame(session: SparkSession, parts: Sequence[Part], reading: Reading) -> DataFrame:
    """Return the rows of some parts in SCHEMA, a partition for each part."""
    return spans_frame(session, parts, in_order=False).mapInArrow(partial(read_files, reading=reading), SCHEMA)


def keyed_frame(
    session: SparkSession, parts: Sequence[Part], reading: Reading, *, count: int, left: Sequence[int]
) -> DataFrame:
    """Return the rows of a job of `count` parts by ordering key, for the parts that are left, a partition for each.

    The rows of a part are in the order of the files. Spark divides the same files in the same way each time.
    """
    from pyspark.sql import functions as f

    rows = messages_frame(session, parts, reading).withColumnRenamed("part", "split")
    alone = f.concat_ws(" ", "split", "row")
    numbered = rows.withColumn("part", part_of_key(f.col("ordering_key"), alone, parts=count))
    placed = numbered.where(f.col("part").isin(*left)).repartitionById(count, "part")
    return placed.sortWithinPartitions("split", "row")


def count_rows(session: SparkSession, parts: Sequence[Part], heads: Sequence[Head], reading: Reading) -> int:
    """Return the number of rows, including those that will be rejected. Heads that have it save reading the files."""
    counts = [head.rows for head in heads if head.rows is not None]
    if counts:
        return sum(counts)
    return int(messages_frame(session, parts, reading).count())


def spans_frame(session: SparkSession, parts: Sequence[Part], *, in_order: bool) -> DataFrame:
    """Return the parts as rows, which `read_files` takes: in one partition and in their order, or one for each."""
    rows = [(task, part.number, str(part.path.absolute()), *part.span) for task, part in enumerate(parts)]
    frame = session.createDataFrame(rows, "task int, part int, path string, first long, last long, line long")
    return frame.coalesce(1) if in_order else frame.repartitionById(len(rows), "task")
