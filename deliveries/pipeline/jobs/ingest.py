"""Ingest publishes the rows of files as messages of a topic."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from hashlib import file_digest, sha256
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.pipeline.jobs.parquetrows import (
    FILE,
    PART,
    Span,
    folder_kind,
    folders_of,
    footer_of,
    read_spans,
    schema_of,
    spans_of,
)
from deliveries.pipeline.jobs.rows import SCHEMA, USUAL, Columns, Dialect, RowError, csv_header, read_files
from deliveries.telemetry.journal.parquetfiles import first_line
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import AnyFile, files_matching, is_remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
#: The suffix of the file of rejects. A pattern for the source may match that file.
REJECTED_SUFFIX = ".rejected"
#: More row groups than a file has.
LAST_GROUP = 2**31 - 1


def files_of(source: str, *, form: str) -> Sequence[AnyFile]:
    """Return the files of a source in the order of their paths. Raises InvalidArgument if there are none.

    A source is a file, a folder or a pattern, on this machine or in an object store. Names that begin with a dot or an
    underscore are left out of folders.
    """
    if is_remote(source):
        files: Sequence[AnyFile] = [file for file in files_matching(source) if file.suffix != REJECTED_SUFFIX]
    else:
        files = _local_files(source)
    if not files:
        raise InvalidArgument(f"{source} cannot be read as {form}: there is no such file.", field="source")
    return files


def base_of(source: str, files: Sequence[AnyFile]) -> str:
    """Return the address of a source that is a folder, or "": names of folders below it may be columns."""
    if is_remote(source):
        base = source.rstrip("/")
        return "" if "*" in base or [str(file) for file in files] == [base] else base
    return str(Path(source).absolute()) if Path(source).is_dir() else ""


def _local_files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        paths = [child for child in path.rglob("*") if not _is_hidden(child.relative_to(path))]
    else:
        paths = [path] if path.exists() else [Path(name) for name in glob.glob(source, recursive=True)]  # noqa: PTH207
    return sorted(path for path in paths if path.is_file() and path.suffix != REJECTED_SUFFIX)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def check_dialect(dialect: Dialect, *, form: str) -> None:
    """Raise InvalidArgument for an option that the format does not have, or that cannot be used."""
    options = set(dialect.options())
    if form != "csv" and (wrong := sorted(options & {"delimiter", "quote", "null"})):
        raise InvalidArgument(f"--{wrong[0]} goes with --format csv only.", field=wrong[0])
    if form != "json" and dialect.multi_line:
        raise InvalidArgument("--multi-line goes with --format json only.", field="multi_line")
    if form == "parquet" and options:
        raise InvalidArgument("--encoding and --malformed go with CSV and JSON only.", field="format")
    try:
        dialect.check()
    except RowError as error:
        raise InvalidArgument(f"{error}.", field="dialect") from None


def content_of(files: Sequence[AnyFile]) -> str:
    """Return a digest of the files' names and contents, in their order."""
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an ingest: a file or, of an unordered Parquet file, some of its row groups."""

    number: int
    path: AnyFile
    span: Span


def parts_of(files: Sequence[AnyFile], *, form: str, unordered: bool) -> list[Part]:
    """Divide files into parts, in their order. Raises InvalidArgument for a file that is not of the format."""
    if form != "parquet":
        return [Part(number, path, Span(0, 0)) for number, path in enumerate(files)]
    for path in files:
        _parquet_schema(path)
    spans = [(path, span) for path in files for span in (spans_of(path) if unordered else [Span(0, LAST_GROUP)])]
    return [Part(number, path, span) for number, (path, span) in enumerate(spans)]


def messages_frame(
    session: SparkSession,
    parts: Sequence[Part],
    *,
    form: str,
    columns: Columns,
    dialect: Dialect = USUAL,
    base: str = "",
    in_order: bool = True,
) -> DataFrame:
    """Return the messages of some parts, with the part's number in the column `part`.

    Raises InvalidArgument for a bad file. If `in_order`, one task reads all parts one after the other; otherwise there
    is a task per part. Below the folder `base`, names of folders such as `day=1` are columns of Parquet files.
    """
    if form == "parquet":
        frames = [
            _parquet_messages(session, alike, columns=columns, base=base, in_order=in_order)
            for alike in _by_schema(parts, base)
        ]
    else:
        for part in parts if form == "csv" else ():
            _require_columns(part.path, columns, dialect)
        frames = [_text_messages(session, parts, form=form, columns=columns, dialect=dialect, in_order=in_order)]
    messages = reduce(lambda first, second: first.unionByName(second), frames)
    # A coalesced union's partitions are read one after the other.
    return messages.coalesce(1) if in_order else messages


def count_rows(
    session: SparkSession, parts: Sequence[Part], *, form: str, columns: Columns, dialect: Dialect = USUAL
) -> int:
    """Return the number of rows, including those that will be rejected."""
    if form == "parquet":
        return sum(int(footer_of(path).num_rows) for path in {part.path for part in parts})
    frame = _text_messages(session, parts, form=form, columns=columns, dialect=dialect, in_order=False)
    return int(frame.count())


def _parquet_schema(path: AnyFile) -> pa.Schema:
    """Return the columns of a Parquet file. Raises InvalidArgument for any other file."""
    import pyarrow as pa

    try:
        return schema_of(path)
    except (pa.ArrowException, OSError) as error:
        reason = first_line(error)
        raise InvalidArgument(f"{path} cannot be read as parquet: {reason}", field="source") from None


def _by_schema(parts: Sequence[Part], base: str) -> list[list[Part]]:
    """Return the parts in groups of neighbours whose files have the same columns."""
    schemas = {part.path: (_parquet_schema(part.path), *folders_of(part.path, base)) for part in parts}
    return [list(group) for _, group in groupby(parts, key=lambda part: schemas[part.path])]


def _parquet_messages(
    session: SparkSession, parts: Sequence[Part], *, columns: Columns, base: str, in_order: bool
) -> DataFrame:
    """Return the messages of parts whose files have the same columns."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    path = parts[0].path
    folders = [folders_of(each, base) for each in {part.path for part in parts}]
    texts = [(name, pa.string()) for name in folders[0]]
    fields = [(field.name, field.type) for field in _parquet_schema(path) if field.name not in folders[0]]
    try:
        read = from_arrow_schema(pa.schema([(PART, pa.int32()), (FILE, pa.string()), *fields, *texts]))
    except PySparkException as error:
        reason = first_line(error)
        raise InvalidArgument(f"{path} cannot be read as parquet: {reason}", field="source") from None
    task = partial(read_spans, schema=to_arrow_schema(read), base=base)
    rows = _spans(session, parts, in_order=in_order).mapInArrow(task, read)
    for name in folders[0]:
        kind = folder_kind(folder[name] for folder in folders)
        rows = rows.withColumn(name, f.col(f"`{name}`").cast(kind))
    return messages_of(rows, columns)


def _text_messages(
    session: SparkSession, parts: Sequence[Part], *, form: str, columns: Columns, dialect: Dialect, in_order: bool
) -> DataFrame:
    """Return the rows of CSV or JSON files."""
    task = partial(read_files, form=form, columns=columns, dialect=dialect)
    return _spans(session, parts, in_order=in_order).mapInArrow(task, SCHEMA)


def _spans(session: SparkSession, parts: Sequence[Part], *, in_order: bool) -> DataFrame:
    """Return the parts as rows for tasks: one task for all of them, or a task for each."""
    rows = [
        (task, part.number, str(part.path.absolute()), part.span.first, part.span.last)
        for task, part in enumerate(parts)
    ]
    frame = session.createDataFrame(rows, "task int, part int, path string, first int, last int")
    return frame.coalesce(1) if in_order else frame.repartitionById(len(rows), "task")


def messages_of(rows: DataFrame, columns: Columns) -> DataFrame:
    """Return part, file, data, attributes, ordering_key. Without a data column, the data is the whole row in JSON."""
    from pyspark.sql import functions as f

    names = [name for name in rows.columns if name not in (PART, FILE)]
    for name in columns.named():
        if name not in names:
            raise InvalidArgument(f"The source has no column {name!r}. It has: {', '.join(names)}.", field=name)
    data = f.col(f"`{columns.data}`") if columns.data else f.to_json(f.struct(*[f.col(f"`{name}`") for name in names]))
    attributes = [part for name in columns.attributes for part in (f.lit(name), f.col(f"`{name}`").cast("string"))]
    key = f.col(f"`{columns.ordering_key}`") if columns.ordering_key else f.lit("")
    return rows.select(
        f.col(PART).alias("part"),
        f.col(FILE).alias("file"),
        data.cast("binary").alias("data"),
        (f.create_map(*attributes) if attributes else f.lit(None)).cast("map<string,string>").alias("attributes"),
        key.cast("string").alias("ordering_key"),
    )


def _require_columns(path: AnyFile, columns: Columns, dialect: Dialect) -> None:
    try:
        header = csv_header(path, dialect=dialect)
    except RowError as error:
        raise InvalidArgument(f"{path} cannot be read as csv: {error}.", field="source") from None
    for name in columns.named():
        if name not in header:
            raise InvalidArgument(f"{path.name} has no column {name!r}. It has: {', '.join(header)}.", field=name)
