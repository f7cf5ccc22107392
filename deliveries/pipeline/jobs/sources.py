"""The files of an ingest: which ones a source names, what is in them, and how they are divided among tasks."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from deliveries.pipeline.archiving.manifest import read_manifest
from deliveries.pipeline.jobs.avrorows import avro_columns, avro_spans
from deliveries.pipeline.jobs.messages import Columns, RowError
from deliveries.pipeline.jobs.parquetrows import parquet_head
from deliveries.pipeline.jobs.rows import COMPRESSED, Dialect, csv_header
from deliveries.pipeline.jobs.spans import WHOLE, Head, Span, line_spans
from pushhub.common.errors import InvalidArgument
from pushhub.common.stores import AnyFile, Store, file_of, files_matching, is_hidden, is_remote

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FORMATS = ("parquet", "avro", "csv", "json")
#: The suffix of the file of rejects. A pattern for the source may match that file.
REJECTED_SUFFIX = ".rejected"
#: What Hive writes into the name of a folder whose rows have no value.
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
#: What `survey` returns about each file.
SURVEYED = "number int, digest string, spans array<struct<first:long,last:long,line:long>>"


def files_of(source: str, *, form: str) -> Sequence[AnyFile]:
    """Return the files of a source in the order of their paths. Raises InvalidArgument if there are none.

    A source is a file, a folder or a pattern, on this machine or in an object store. Names that begin with a dot or an
    underscore are left out of folders. Of an archive of PushHub, the files are those of its manifest.
    """
    if form == "parquet" and (names := _archived(source)):
        files: Sequence[AnyFile] = names
    elif is_remote(source):
        files = [file for file in files_matching(source) if file.suffix != REJECTED_SUFFIX]
    else:
        files = _local_files(source)
    if not files:
        raise InvalidArgument(f"{source} cannot be read as {form}: there is no such file.", field="source")
    return files


def _archived(source: str) -> Sequence[AnyFile]:
    """Return the files of an archive; none if the source is something else."""
    if "*" in source if is_remote(source) else not Path(source).is_dir():
        return []
    store = Store(source)
    return sorted(file_of(f"{store}/{row.path}") for row in read_manifest(store))


def _local_files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        paths = [child for child in path.rglob("*") if not is_hidden(child.relative_to(path).as_posix())]
    else:
        paths = [path] if path.exists() else [Path(name) for name in glob.glob(source, recursive=True)]  # noqa: PTH207
    return sorted(path for path in paths if path.is_file() and path.suffix != REJECTED_SUFFIX)


def base_of(source: str, files: Sequence[AnyFile]) -> str:
    """Return the address of a source that is a folder, or "": names of folders below it may be columns."""
    if is_remote(source):
        base = source.rstrip("/")
        return "" if "*" in base or [str(file) for file in files] == [base] else base
    return str(Path(source).absolute()) if Path(source).is_dir() else ""


def folders_of(path: AnyFile, base: str) -> dict[str, str | None]:
    """Return the columns that folders such as `day=1` below `base` stand for."""
    if not base:
        return {}
    folders = str(path.absolute()).removeprefix(f"{base}/").split("/")[:-1]
    names = [folder.partition("=") for folder in folders if "=" in folder]
    return {unquote(name): None if value == NO_VALUE else unquote(value) for name, _, value in names}


def folder_kinds(files: Iterable[AnyFile], base: str) -> dict[str, type]:
    """Return the types of the columns whose values are in names of folders: numbers if all are numbers, else texts."""
    values: dict[str, list[str]] = {}
    for path in files:
        for name, value in folders_of(path, base).items():
            values.setdefault(name, []).extend([] if value is None else [value])
    return {name: _kind(texts) for name, texts in values.items()}


def _kind(texts: Sequence[str]) -> type:
    for kind, is_kind in ((int, re.compile(r"-?\d+")), (float, re.compile(r"-?\d+(\.\d+)?"))):
        if texts and all(is_kind.fullmatch(text) for text in texts):
            return kind
    return str


def folder_values(path: AnyFile, base: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of the columns that are in the names of a file's folders."""
    return {name: None if text is None else kinds[name](text) for name, text in folders_of(path, base).items()}


def heads_of(files: Sequence[AnyFile], *, form: str, dialect: Dialect) -> list[Head]:
    """Return the head of each file; none for JSON. Raises InvalidArgument for a file that is not of the format."""
    readers: dict[str, Callable[[AnyFile], Head]] = {
        "parquet": parquet_head,
        "avro": lambda path: Head(avro_columns(path)),
        "csv": lambda path: Head(csv_header(path, dialect=dialect)),
    }
    heads = []
    for path in files if form in readers else ():
        try:
            heads.append(readers[form](path))
        except RowError as error:
            raise InvalidArgument(f"{path} cannot be read as {form}: {error}.", field="source") from None
    return heads


def check_columns(files: Sequence[AnyFile], heads: Sequence[Head], *, form: str, columns: Columns, base: str) -> None:
    """Raise InvalidArgument for a file that lacks a named column. `heads` may be empty."""
    for path, head in zip(files, heads, strict=False):
        names = [*head.columns, *(folders_of(path, base) if form == "parquet" else ())]
        for name in columns.named():
            if name not in names:
                raise InvalidArgument(f"{path.name} has no column {name!r}. It has: {', '.join(names)}.", field=name)


def survey(
    session: SparkSession, files: Sequence[AnyFile], heads: Sequence[Head], *, form: str, multi_line: bool
) -> tuple[str, list[Sequence[Span]]]:
    """Return a digest of the files' names and contents, in their order, and the spans of each. A task reads a file."""
    rows = [(number, str(path.absolute())) for number, path in enumerate(files)]
    frame = session.createDataFrame(rows, "number int, path string").repartitionById(len(rows), "number")
    found = frame.mapInArrow(partial(_survey_files, form=form, multi_line=multi_line), SURVEYED).collect()
    digest, spans = sha256(), []
    for path, row in zip(files, sorted(found), strict=True):
        digest.update(f"{path.name}\0{row.digest}\0".encode())
        spans.append([Span(*span) for span in row.spans] or heads[row.number].spans)
    return digest.hexdigest(), spans


def _survey_files(batches: Iterable[pa.RecordBatch], *, form: str, multi_line: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    span = pa.struct([("first", pa.int64()), ("last", pa.int64()), ("line", pa.int64())])
    schema = pa.schema([("number", pa.int32()), ("digest", pa.string()), ("spans", pa.list_(span))])
    for batch in batches:
        for row in batch.to_pylist():
            path = file_of(row["path"])
            spans = spans_of(path, form=form, multi_line=multi_line)
            own = [span._asdict() for span in spans]
            found = {"number": row["number"], "digest": content_of(path), "spans": own}
            yield pa.RecordBatch.from_pylist([found], schema=schema)


def content_of(path: AnyFile) -> str:
    """Return a digest of a file's content."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def spans_of(path: AnyFile, *, form: str, multi_line: bool = False) -> list[Span]:
    """Divide a file. Parquet's head has its spans. CSV, compressed text, and objects of several lines stay whole."""
    if form == "parquet":
        return []
    if form == "avro":
        return avro_spans(path)
    return line_spans(path) if form == "json" and not multi_line and path.suffix not in COMPRESSED else [WHOLE]
