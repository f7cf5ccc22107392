"""Reads rows of CSV and JSON files in Spark's tasks, without Django.

Spark's own readers cut or pad malformed rows, or turn them into nulls. Here each row becomes one message as a whole, or
is rejected with the reason and the line at which it begins. By default both are UTF-8, and CSV is that of RFC 4180: a
header, and fields in double quotes that may have newlines in them, with a quote within them doubled.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from deliveries.pipeline.jobs.jsonvalues import JsonScanner, JsonText
from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.spans import WHOLE, Span
from pushhub.common.stores import AnyFile

#: A message has at most 10 MB. A longer row is rejected before all of it is in memory.
MAX_ROW_BYTES = 32 * 1024 * 1024
#: Characters of a rejected row that are kept.
SHOWN_CHARACTERS = 1_000
COMPRESSED: Mapping[str, Any] = {".gz": gzip.open, ".bz2": bz2.open}


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


class _Lines:
    """The lines of a span of a file. It remembers those of the current row."""

    def __init__(self, file: BinaryIO, encoding: str, span: Span = WHOLE) -> None:
        self._file = file
        self._encoding = encoding
        self._count = span.line - 1
        #: The bytes of the span that are left.
        self._left = span.last - span.first
        if span.first:
            file.seek(span.first)
        self.begin()

    def begin(self) -> None:
        """Begin a row with the next line."""
        self.first = self._count + 1
        self._row: list[bytes] = []
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._file.readline(MAX_ROW_BYTES + 1) if self._left > 0 else b""
        if not line:
            raise StopIteration
        self._left -= len(line)
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
        text = self.row()[: 4 * SHOWN_CHARACTERS].decode(self._encoding, errors="replace")
        return _reject(reason, self.first, self._count, text)

    def rows(self, read: Callable[[], Row | None]) -> Iterator[Row]:
        """Return the rows that `read` makes of the next lines, and rejects in place of the malformed ones."""
        while True:
            self.begin()
            try:
                row = read()
            except StopIteration:
                return
            except OverflowError:
                reason = f"the row is longer than {MAX_ROW_BYTES:,} bytes; the rest of the file was not read"
                yield self.rejected(reason)
                return
            except csv.Error as error:
                row = self.rejected(f"it is not CSV: {error}")
            except RowError as error:
                row = self.rejected(str(error))
            if row is not None:
                yield row


def _reject(reason: str, first: int, last: int, text: str) -> Row:
    lines = f"{first} to {last}" if last > first else str(first)
    return Row(first, reason=f"line {lines}: {reason}", text=text[:SHOWN_CHARACTERS])


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


def read_rows(
    path: AnyFile, *, form: str, columns: Columns, dialect: Dialect = USUAL, span: Span = WHOLE
) -> Iterator[Row]:
    """Return the rows of a file, or of a span of JSON lines, in their order. `form` is csv or json.

    Empty lines are skipped.

    If the dialect is strict, raises RowError, which names the first malformed row.
    """
    with opened(path) as file:
        for row in _rows(file, form=form, columns=columns, dialect=dialect, span=span):
            if row.reason and dialect.is_strict:
                raise RowError(f"{path.name}, {row.reason}")
            yield row


def _rows(file: BinaryIO, *, form: str, columns: Columns, dialect: Dialect, span: Span) -> Iterator[Row]:
    lines = _Lines(file, dialect.encoding, span)
    if form == "csv":
        reader = _reader(lines, dialect)
        return lines.rows(partial(_csv_row, lines, reader, _header(reader), columns, null=dialect.null))
    if dialect.multi_line:
        scanner = JsonScanner(file, encoding=dialect.encoding, longest=MAX_ROW_BYTES)
        return (_object_row(value, columns, encoding=dialect.encoding) for value in scanner)
    return lines.rows(partial(_line_row, lines, columns))


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
        shown = value.text[:SHOWN_CHARACTERS].encode(errors="replace").decode()
        return _reject(str(error), value.first, value.last, shown)


def _line_row(lines: _Lines, columns: Columns) -> Row | None:
    """Return the row of the next line of JSON; None for an empty line."""
    next(lines)
    return _json_row(lines.utf8().strip(), lines.first, columns) if lines.row().strip() else None


def _json_row(raw: bytes, line: int, columns: Columns) -> Row:
    try:
        values = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RowError(f"it is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise RowError("it is JSON, but not an object")
    if columns.data and columns.data not in values:
        raise RowError(f"it has no field {columns.data!r}")
    if any(isinstance(values.get(name), float | list | dict) for name in columns.named()):
        values = _exact(raw)
    return row_of(line, values, columns, whole=raw)


def _exact(raw: bytes) -> Any:
    """Return the value of a valid JSON text, with its numbers as they are written: orjson's floats lose digits."""
    try:
        return json.loads(raw, parse_int=orjson.Fragment, parse_float=orjson.Fragment)
    except RecursionError:
        raise RowError("it is nested too deeply") from None


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


def _csv_row(
    lines: _Lines, reader: Iterator[list[str]], header: Sequence[str], columns: Columns, *, null: str
) -> Row | None:
    """Return the next row of CSV; None for an empty line."""
    values = next(reader)
    if not values:
        return None
    if len(values) != len(header):
        raise RowError(f"it has {len(values)} columns, and the header has {len(header)}")
    lines.text()
    row = {name: None if value == null else value for name, value in zip(header, values, strict=True)}
    return row_of(lines.first, row, columns)
