"""Ingest: rows of files, as messages of a topic."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING

from deliveries.pipeline.jobs.rows import SCHEMA, USUAL, Columns, Dialect, RowError, csv_header, files_read
from deliveries.pipeline.parquetfiles import first_line
from deliveries.pipeline.session import messages_reader
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import AnyFile, files_matching, is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "csv", "json")
#: Where rejects go; a pattern for the source may match it.
REJECTED_SUFFIX = ".rejected"


def files_of(source: str, *, form: str) -> Sequence[AnyFile]:
    """The files of a source in the order of their paths; InvalidArgument where there are none.

    A source is a file, a folder or a pattern, on this machine or in an object store. Names that begin with a dot or an
    underscore are left out of folders.
    """
    if is_remote(source):
        return _remote_files(source, form=form)
    path = Path(source)
    if path.is_dir():
        found = [one for one in path.rglob("*") if not _is_hidden(one.relative_to(path))]
    else:
        found = [path] if path.exists() else [Path(one) for one in glob.glob(source, recursive=True)]  # noqa: PTH207
    files = sorted(one for one in found if one.is_file() and one.suffix != REJECTED_SUFFIX)
    if not files:
        raise InvalidArgument(f"{source} cannot be read as {form}: there is no such file.", field="source")
    return files


def _remote_files(source: str, *, form: str) -> Sequence[AnyFile]:
    if form == "parquet":
        raise InvalidArgument("Parquet files are read from a folder only; copy them there.", field="source")
    files = [file for file in files_matching(source) if file.suffix != REJECTED_SUFFIX]
    if not files:
        raise InvalidArgument(f"{source} cannot be read as {form}: there is no such file.", field="source")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def dialect_check(dialect: Dialect, *, form: str) -> None:
    """InvalidArgument where there are no such files, or where their format has no such option."""
    options = set(dialect.options())
    if form != "csv" and (wrong := sorted(options & {"delimiter", "quote", "null"})):
        raise InvalidArgument(f"--{wrong[0]} goes with --format csv only.", field=wrong[0])
    if form == "parquet" and options:
        raise InvalidArgument("--encoding and --malformed go with CSV and JSON only.", field="format")
    try:
        dialect.check()
    except RowError as error:
        raise InvalidArgument(f"{error}.", field="dialect") from None


def content_of(files: Sequence[AnyFile]) -> str:
    """A digest of the files' names and contents, in their order."""
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{file_digest(file, 'sha256').hexdigest()}\0".encode())
    return digest.hexdigest()


def frames_of(
    session: SparkSession,
    files: Sequence[AnyFile],
    *,
    form: str,
    columns: Columns,
    dialect: Dialect = USUAL,
    base: str = "",
) -> list[DataFrame]:
    """For each file its messages in the order of its rows, as one task reads them; InvalidArgument for a bad file.

    `base` is the folder below which names of folders such as `day=1` are columns of Parquet files.
    """
    if form == "parquet":
        return [messages_of(parquet_read(session, [path], base=base), columns).coalesce(1) for path in files]
    for path in files if form == "csv" else ():
        _require_columns(path, columns, dialect)
    return [_read(session, [path], form=form, columns=columns, dialect=dialect).coalesce(1) for path in files]


def count_rows(
    session: SparkSession, files: Sequence[AnyFile], *, form: str, columns: Columns, dialect: Dialect = USUAL
) -> int:
    """How many rows there are, with those that will be rejected."""
    if form == "parquet":
        return int(parquet_read(session, files).count())
    return int(_read(session, files, form=form, columns=columns, dialect=dialect).count())


def parquet_read(session: SparkSession, files: Sequence[AnyFile], *, base: str = "") -> DataFrame:
    """The rows of Parquet files; InvalidArgument names one that is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in files:
        try:
            pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            reason = first_line(error)
            raise InvalidArgument(f"{path} cannot be read as parquet: {reason}", field="source") from None
    reader = messages_reader(session)
    reader = reader.option("basePath", base) if base else reader
    return reader.parquet(*[f"file://{path.absolute()}" for path in files])


def messages_of(rows: DataFrame, columns: Columns) -> DataFrame:
    """File, data, attributes, ordering_key; without a column for it, the data is the whole row in JSON."""
    from pyspark.sql import functions as f

    for name in columns.named():
        if name not in rows.columns:
            raise InvalidArgument(f"The source has no column {name!r}. It has: {', '.join(rows.columns)}.", field=name)
    data = (
        f.col(f"`{columns.data}`")
        if columns.data
        else f.to_json(f.struct(*[f.col(f"`{one}`") for one in rows.columns]))
    )
    attributes = [part for one in columns.attributes for part in (f.lit(one), f.col(f"`{one}`").cast("string"))]
    key = f.col(f"`{columns.ordering_key}`") if columns.ordering_key else f.lit("")
    return rows.select(
        f.col("_metadata.file_name").alias("file"),
        data.cast("binary").alias("data"),
        (f.create_map(*attributes) if attributes else f.lit(None)).cast("map<string,string>").alias("attributes"),
        key.cast("string").alias("ordering_key"),
    )


def _read(
    session: SparkSession, files: Sequence[AnyFile], *, form: str, columns: Columns, dialect: Dialect
) -> DataFrame:
    paths = session.createDataFrame([(str(path.absolute()),) for path in files], "path string")
    return paths.mapInArrow(partial(files_read, form=form, columns=columns, dialect=dialect), SCHEMA)


def _require_columns(path: AnyFile, columns: Columns, dialect: Dialect) -> None:
    try:
        header = csv_header(path, dialect=dialect)
    except RowError as error:
        raise InvalidArgument(f"{path} cannot be read as csv: {error}.", field="source") from None
    for name in columns.named():
        if name not in header:
            raise InvalidArgument(f"{path.name} has no column {name!r}. It has: {', '.join(header)}.", field=name)
