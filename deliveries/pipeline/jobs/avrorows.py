"""Reads rows of Avro files in Spark's tasks, block by block."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from deliveries.pipeline.jobs.messages import Columns, Row, RowError, row_of
from deliveries.pipeline.jobs.spans import Span, divide
from pushhub.common.stores import AnyFile


def avro_columns(path: AnyFile) -> list[str]:
    """Return the columns of an Avro file. Raises RowError, also if its blocks cannot be decompressed here."""
    import fastavro
    from fastavro.schema import SchemaParseException

    errors = (ValueError, OSError, EOFError, LookupError, TypeError, zlib.error, SchemaParseException)
    try:
        with path.open("rb") as file:
            reader = fastavro.reader(file)
            next(reader, None)
            schema = reader.writer_schema
    except errors as error:
        raise RowError(str(error).splitlines()[0] if str(error) else "it ends too early") from None
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise RowError("its values are not records")
    return [field["name"] for field in schema["fields"]]


def avro_spans(path: AnyFile) -> list[Span]:
    """Divide a file at its blocks."""
    import fastavro

    with path.open("rb") as file:
        return divide(block.size for block in fastavro.block_reader(file))


def read_avro(path: AnyFile, span: Span, columns: Columns) -> Iterator[Row]:
    """Return the rows of the blocks of a span."""
    import fastavro

    with path.open("rb") as file:
        for number, block in enumerate(fastavro.block_reader(file)):
            if number >= span.last:
                return
            if number >= span.first:
                for record in block:
                    assert isinstance(record, dict)
                    yield row_of(None, record, columns)
