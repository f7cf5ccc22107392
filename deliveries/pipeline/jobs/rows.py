"""Reads rows of CSV and JSON files in Spark's tasks, without Django.

Spark's own readers cut or pad malformed rows, or turn them into nulls. Here each row becomes one message as a whole, or
is rejected with the reason and the line at which it begins. By default both are UTF-8, and CSV is that of RFC 4180: a
header, and fields in double quotes that may have newlines in them, with a quote within them doubled.
"""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from deliveries.pipeline.jobs.jsonvalues import JsonScanner, JsonText
from pushhub.common.stores import AnyFile, file_of

if TYPE_CHECKING:
    import pyarrow as pa

#: A message has at most 10 MB. A longer row is rejected before all of it is in memory.
MAX_ROW_BYTES = 32 * 1024 * 1024
#: An Arrow batch ends when it has this many rows or bytes.
BATCH_ROWS = 1_000
BATCH_BYTES = 16 * 1024 * 1024
#: Characters of a rejected row that are kept.
SHOWN_CHARACTERS = 1_000
SCHEMA = (
    "part int, file string, line long, data binary, attributes map<string,string>, ordering_key string, reason string,"
    " text string"
)
COMPRESSED: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that become data, attributes and ordering key. Without `data`, the data is the whole row in JSON."""

    data: str = ""
    attributes: Sequence[str] = ()
    ordering_key: str = ""

    def named(self) -> list[str]:
        return [name for name in (self.data, *self.attributes, self.ordering_key) if name]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The syntax of the files. Delimiter, quote and null are for CSV."""

    delimiter: str = ","
    #: Without a quote, every delimiter and every newline ends a field.
    quote: str = '"'
    #: The text of a field without a value.
    null: str = ""
    encoding: str = "utf-8"
    #: Whether an object of JSON may take several lines; otherwise each line is one.
    multi_line: bool = False
    #: Whether the first malformed row ends the job; otherwise malformed rows are rejected.
    is_strict: bool = False

    def check(self) -> None:
        """Raise RowError for an option that cannot be used."""
        if len(self.delimiter) != 1 or self.delimiter in '\r\n"':
            raise RowError(f"the delimiter must be one character, no quote and no newline, and not {self.delimiter!r}")
        if len(self.quote) > 1 or self.quote in ("\r", "\n", self.delimiter):
            raise RowError(f"the quote must be one character, no newline and not the delimiter, and not {self.quote!r}")
        try:
            has_ascii = 'a,"\n'.encode(self.encoding) == b'a,"\n'
        except LookupError:
            raise RowError(f"there is no encoding {self.encoding!r}") from None
        if not has_ascii:
            raise RowError(f"lines cannot be told apart in {self.encoding}: convert the files to UTF-8")

    def options(self) -> dict[str, Any]:
        """Return the options that differ from the default, by name."""
        usual = Dialect()
        return {name: value for name, value in asdict(self).items() if value != getattr(usual, name)}


USUAL = Dialect()


@dataclass(frozen=True, slots=True)
class Row:
    """A message, or the reason why the row is not one, and its text."""

    line: int
    data: bytes = b""
    attributes: Mapping[str, str] | None = None
    ordering_key: str = ""
    reason: str = ""
    text: str = ""


class RowError(Exception):
    """The reason why a row is not a message."""


class _Lines:
    """The lines of a file. It remembers those of the current row."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        self._file = file
        self._encoding = encoding
        self._count = 0
        self.begin()

    def begin(self) -> None:
        """Begin a row with the next line."""
        self.first = self._count + 1
        self._row: list[bytes] = []
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_ROW_BYTES + 1)
        if not line:
            raise StopIteration
        self._count += 1
        if self._count == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        self._row.append(line)
        self._size += len(line)
        if self._size > MAX_ROW_BYTES:
            raise OverflowError("it is too long")
        return line.decode(self._encoding, errors="surrogateescape")

    def row(self) -> bytes:
        return b"".join(self._row)

    def text(self) -> str:
        """Return the text of the row. Raises RowError if it is not in the encoding."""
        try:
            return self.row().decode(self._encoding)
        except UnicodeDecodeError as error:
            raise RowError(f"it is not {self._encoding.upper()}: {error.reason}") from None

    def utf8(self) -> bytes:
        """Return the row in UTF-8, unchecked if that is its encoding."""
        return self.row() if self._encoding == USUAL.encoding else self.text().encode()

    def rejected(self, reason: str) -> Row:
        text = self.row()[: 4 * SHOWN_CHARACTERS].decode(self._encoding, errors="replace")[:SHOWN_CHARACTERS]
        last = f" to {self._count}" if self._count > self.first else ""
        return Row(self.first, reason=f"line {self.first}{last}: {reason}", text=text)

    def too_long(self) -> Row:
        return self.rejected(f"the row is longer than {MAX_ROW_BYTES:,} bytes; the rest of the file was not read")


def opened(path: AnyFile) -> BinaryIO:
    """Open a file for reading, decompressed."""
    if isinstance(path, Path):
        file: BinaryIO = COMPRESSED.get(path.suffix, open)(path, "rb")
        return file
    return COMPRESSED[path.suffix](path.open(), "rb") if path.suffix in COMPRESSED else path.open()


def csv_header(path: AnyFile, *, dialect: Dialect = USUAL) -> list[str]:
    """Return the columns of a CSV file. Raises RowError for a bad header."""
    with opened(path) as file:
        return _header(_reader(_Lines(file, dialect.encoding), dialect))


def read_rows(path: AnyFile, *, form: str, columns: Columns, dialect: Dialect = USUAL) -> Iterator[Row]:
    """Return the rows of a file in their order. `form` is csv or json. Empty lines are skipped.

    If the dialect is strict, raises RowError, which names the first malformed row.
    """
    with opened(path) as file:
        for row in _rows(file, form=form, columns=columns, dialect=dialect):
            if row.reason and dialect.is_strict:
                raise RowError(f"{path.name}, {row.reason}")
            yield row


def read_files(
    batches: Iterable[pa.RecordBatch], *, form: str, columns: Columns, dialect: Dialect = USUAL
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: return the rows of the files that are rows of (part, path), in SCHEMA."""
    for batch in batches:
        for part, path in zip(batch.column("part").to_pylist(), batch.column("path").to_pylist(), strict=True):
            rows: list[Row] = []
            weight = 0
            for row in read_rows(file_of(path), form=form, columns=columns, dialect=dialect):
                rows.append(row)
                weight += len(row.data)
                if len(rows) >= BATCH_ROWS or weight >= BATCH_BYTES:
                    yield _batch(part, path, rows)
                    rows, weight = [], 0
            if rows:
                yield _batch(part, path, rows)


def _rows(file: BinaryIO, *, form: str, columns: Columns, dialect: Dialect) -> Iterator[Row]:
    lines = _Lines(file, dialect.encoding)
    if form == "csv":
        return _csv_rows(lines, columns, dialect)
    if dialect.multi_line:
        scanner = JsonScanner(file, encoding=dialect.encoding, longest=MAX_ROW_BYTES)
        return (_object_row(value, columns, encoding=dialect.encoding) for value in scanner)
    return _json_rows(lines, columns)


def _object_row(value: JsonText, columns: Columns, *, encoding: str) -> Row:
    """Return the row of an object that may take several lines."""
    try:
        if value.is_cut:
            raise RowError("it does not end, or is too long; the rest of the file was not read")
        try:
            raw = value.text.encode()
        except UnicodeEncodeError:
            raise RowError(f"it is not {encoding.upper()}") from None
        return _json_row(raw, value.first, columns)
    except RowError as error:
        last = f" to {value.last}" if value.last > value.first else ""
        shown = value.text[:SHOWN_CHARACTERS].encode(errors="replace").decode()
        return Row(value.first, reason=f"line {value.first}{last}: {error}", text=shown)


def _json_rows(lines: _Lines, columns: Columns) -> Iterator[Row]:
    while True:
        lines.begin()
        try:
            next(lines)
        except StopIteration:
            return
        except OverflowError:
            yield lines.too_long()
            return
        if not lines.row().strip():
            continue
        try:
            yield _json_row(lines.utf8().strip(), lines.first, columns)
        except RowError as error:
            yield lines.rejected(str(error))


def _json_row(raw: bytes, line: int, columns: Columns) -> Row:
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RowError(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise RowError("it is JSON, but not an object")
    if columns.data and columns.data not in values:
        raise RowError(f"it has no field {columns.data!r}")
    return _row(line, values, columns, whole=raw)


def _reader(lines: _Lines, dialect: Dialect) -> Any:
    # The limit is that of the process, and its default is smaller than a message may be.
    csv.field_size_limit(MAX_ROW_BYTES)
    if not dialect.quote:
        return csv.reader(lines, strict=True, delimiter=dialect.delimiter, quoting=csv.QUOTE_NONE)
    return csv.reader(lines, strict=True, delimiter=dialect.delimiter, quotechar=dialect.quote)


def _header(reader: Any) -> list[str]:
    try:
        names: list[str] = next(reader)
    except StopIteration:
        raise RowError("it is empty, and so has no header") from None
    except (csv.Error, OverflowError) as error:
        raise RowError(f"its header cannot be read: {error}") from None
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise RowError(f"its header has the column {twice[0]!r} twice")
    try:
        "".join(names).encode()
    except UnicodeEncodeError:
        raise RowError("its header is not UTF-8") from None
    return names


def _csv_rows(lines: _Lines, columns: Columns, dialect: Dialect) -> Iterator[Row]:
    reader = _reader(lines, dialect)
    header = _header(reader)
    while True:
        lines.begin()
        try:
            values = next(reader)
            if values:
                yield _csv_row(lines, header, values, columns, null=dialect.null)
        except StopIteration:
            return
        except OverflowError:
            yield lines.too_long()
            return
        except csv.Error as error:
            yield lines.rejected(f"it is not CSV: {error}")
        except RowError as error:
            yield lines.rejected(str(error))


def _csv_row(lines: _Lines, header: Sequence[str], values: Sequence[str], columns: Columns, *, null: str) -> Row:
    if len(values) != len(header):
        raise RowError(f"it has {len(values)} columns, and the header has {len(header)}")
    lines.text()
    row = {name: None if value == null else value for name, value in zip(header, values, strict=True)}
    return _row(lines.first, row, columns)


def _row(line: int, values: Mapping[str, Any], columns: Columns, *, whole: bytes | None = None) -> Row:
    if columns.data:
        data = _text(values.get(columns.data)).encode()
    elif whole is not None:
        data = whole
    else:
        data = orjson.dumps({name: value for name, value in values.items() if value is not None})
    attributes = {name: _text(values[name]) for name in columns.attributes if values.get(name) is not None}
    return Row(line, data, attributes, _text(values.get(columns.ordering_key)) if columns.ordering_key else "")


def _text(value: Any) -> str:
    """Return a string as it is, and any other value in JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _batch(part: int, path: str, rows: Sequence[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    name = file_of(path).name
    return pa.RecordBatch.from_arrays(
        [
            pa.array([part] * len(rows), pa.int32()),
            pa.array([name] * len(rows), pa.string()),
            pa.array([row.line for row in rows], pa.int64()),
            pa.array([row.data for row in rows], pa.binary()),
            pa.array([list((row.attributes or {}).items()) for row in rows], pa.map_(pa.string(), pa.string())),
            pa.array([row.ordering_key for row in rows], pa.string()),
            pa.array([row.reason for row in rows], pa.string()),
            pa.array([row.text for row in rows], pa.string()),
        ],
        names=["part", "file", "line", "data", "attributes", "ordering_key", "reason", "text"],
    )
