"""The rows of a table as lines of JSON, in the same form whichever database they come from."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import orjson
from django.apps.registry import Apps
from django.db import connections
from django.db.models import AutoField, BinaryField, Field, Model

from pushhub.common.batches import gather
from pushhub.common.databases import iterate_rows

#: Rows that are read together, and that one transaction inserts; of messages and other bytes, few are read.
ROWS_TOGETHER, PAYLOADS_TOGETHER = 5000, 100
#: How a line is written.
LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS
#: The bytes of lines that one transaction inserts.
BYTES_TOGETHER = 30_000_000


class Content(NamedTuple):
    """What a table holds: how many rows, and the sum of their lines' SHA-256.

    The sum has no order, as PostgreSQL may order names in another way than SQLite.
    """

    rows: int = 0
    sha256_sum: int = 0

    def with_line(self, line: bytes) -> Content:
        return Content(self.rows + 1, (self.sha256_sum + int.from_bytes(hashlib.sha256(line).digest())) % (1 << 256))


def models_in_order(apps: Apps) -> list[type[Model]]:
    """Return the models of all tables, each behind those that its foreign keys refer to."""
    models = [model for model in apps.get_models(include_auto_created=True) if model._meta.managed]
    depends_on = {model: _referred_by(model) - {model} for model in models}
    return list(TopologicalSorter(depends_on).static_order())


def _referred_by(model: type[Model]) -> set[type[Model]]:
    """Return the models that constraints of the table refer to."""
    keys = (field.remote_field for field in model._meta.concrete_fields if getattr(field, "db_constraint", False))
    return {key.model for key in keys if key is not None}


def columns_of(model: type[Model]) -> list[str]:
    """Return the names of the columns; migrations make the same ones in another order."""
    return [str(field.column) for field in model._meta.concrete_fields]


def _fields(model: type[Model], columns: Sequence[str]) -> list[Field[Any, Any]]:
    by_column = {field.column: field for field in model._meta.concrete_fields}
    return [by_column[column] for column in columns]


def refers_to_itself(model: type[Model]) -> bool:
    return model in _referred_by(model)


def read_lines(model: type[Model], columns: Sequence[str], *, using: str) -> Iterator[bytes]:
    """Yield each row of the table as a line: a JSON array of the columns' values.

    Keys of JSON within them are sorted: PostgreSQL has an order of its own.
    """
    fields = _fields(model, columns)
    size = PAYLOADS_TOGETHER if any(isinstance(field, BinaryField) for field in fields) else ROWS_TOGETHER
    for row in iterate_rows(model._base_manager.using(using), [field.attname for field in fields], size=size):
        yield orjson.dumps(row, default=_encode, option=LINE)


def _encode(value: Any) -> str:
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"a column has a value of the type {type(value).__name__}")


def lines_together(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines in lists that one transaction inserts."""
    return gather(lines, most=ROWS_TOGETHER, size_of=len, size=BYTES_TOGETHER)


def insert_lines(model: type[Model], columns: Sequence[str], lines: Sequence[bytes], *, using: str) -> None:
    """Insert rows as they are, without what models and signals would do to them. The caller owns the transaction."""
    connection, fields = connections[using], _fields(model, columns)
    quote = connection.ops.quote_name
    names = ", ".join(map(quote, columns))
    places = ", ".join(["%s"] * len(fields))
    values = [
        [
            field.get_db_prep_save(field.to_python(value), connection)
            for field, value in zip(fields, orjson.loads(line), strict=True)
        ]
        for line in lines
    ]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {quote(model._meta.db_table)} ({names}) VALUES ({places})",  # noqa: S608 - our own names
            values,
        )


def last_id(model: type[Model], *, using: str) -> int | None:
    """Return the last id that the table gave a row, which may be deleted; None if it has given none, or gives none."""
    if not isinstance(model._meta.pk, AutoField):
        return None
    table, column = model._meta.db_table, model._meta.pk.column
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_sequence_last_value(pg_get_serial_sequence(%s, %s)::regclass)", [table, column])
        else:
            cursor.execute("SELECT seq FROM sqlite_sequence WHERE name = %s", [table])
        row = cursor.fetchone()
    return row[0] if row is not None else None


def begin_ids_after(model: type[Model], given: int, *, using: str) -> None:
    """Let new rows have larger ids than `given`, which no row exceeds."""
    assert model._meta.pk is not None
    table, column = model._meta.db_table, model._meta.pk.column
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT setval(pg_get_serial_sequence(%s, %s), %s)", [table, column, given])
            return
        cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = %s", [given, table])
        if not cursor.rowcount:
            cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, given])


def content_of(
    model: type[Model], columns: Sequence[str], *, using: str, write: Callable[[bytes], object] = len
) -> Content:
    return content_of_lines(read_lines(model, columns, using=using), write)


def content_of_lines(lines: Iterable[bytes], write: Callable[[bytes], object] = len) -> Content:
    """Return what the lines of a table hold, and give each to `write`."""
    content = Content()
    for line in lines:
        content = content.with_line(line)
        write(line)
    return content
