"""Reads rows of Avro files in Spark's tasks, block by block."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import IO

from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.spans import Span, divide
from pushhub.common.errors import first_line
from pushhub.common.stores import AnyFile


@contextmanager
def _opened(path: AnyFile, *, named: str = "") -> Iterator[IO[bytes]]:
    """Open a file. Raises RowError, which begins with `named`, if it is damaged."""
    from fastavro.schema import SchemaParseException

    errors = (ValueError, OSError, EOFError, LookupError, TypeError, zlib.error, SchemaParseException)
    try:
        with path.open("rb") as file:
            yield file
    except errors as error:
        raise RowError(named + (first_line(error) if str(error) else "it ends too early")) from None


def avro_columns(path: AnyFile) -> list[str]:
    """Return the columns of an Avro file. Raises RowError, also if its blocks cannot be decompressed here."""
    import fastavro

    with _opened(path) as file:
        reader = fastavro.reader(file)
        next(reader, None)
        schema = reader.writer_schema
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise RowError("its values are not records")
    return [field["name"] for field in schema["fields"]]


def avro_spans(path: AnyFile) -> list[Span]:
    """Divide a file at its blocks. Raises RowError."""
    import fastavro

    with _opened(path, named=f"{path.name}: ") as file:
        return divide(block.size for block in fastavro.block_reader(file))


def read_avro(path: AnyFile, span: Span, columns: Columns) -> Iterator[Row]:
    """Return the rows of the blocks of a span. Raises RowError."""
    import fastavro

    with _opened(path, named=f"{path.name}: ") as file:
        for block in islice(fastavro.block_reader(file), span.first, span.last):
            for record in block:
                assert isinstance(record, dict)
                yield row_of(None, record, columns)
