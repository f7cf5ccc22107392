"""What the modules of SQL share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import orjson
from django.db import connection

#: SQLite takes at most 32,766 parameters a statement; shorter lists also keep its parsing cheap.
IN_CHUNK = 1000


def is_postgresql() -> bool:
    return connection.vendor == "postgresql"


def length_function() -> str:
    """Return the SQL function for the bytes of a payload. Neither database reads the payload for it."""
    return "octet_length" if is_postgresql() else "length"


#: A statement with its parameters.
Statement = tuple[str, list[Any]]


def insert_by_arrays(head: str, rows: Sequence[tuple[Any, ...]], *, casts: Sequence[str], tail: str = "") -> Statement:
    """Return the statement that inserts rows on PostgreSQL, with an array per column.

    psycopg's executemany would send a statement for each row ahead of the replies; if the client freezes between those,
    PostgreSQL doesn't take its transaction for idle, and keeps the rows locked for as long (store/writelock.py).
    """
    arrays = ", ".join(f"%s::{cast}[]" for cast in casts)
    return f"{head} SELECT * FROM unnest({arrays}) {tail}", columns_of(rows)


def columns_of(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def fetch_rows(text: str, parameters: Sequence[Any] = ()) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        rows: list[Any] = cursor.fetchall()
    return rows


def fetch_ids(text: str, parameters: Sequence[Any] = ()) -> list[int]:
    return [row[0] for row in fetch_rows(text, parameters)]


def execute(text: str, parameters: Sequence[Any]) -> int:
    """Execute a statement; return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(text, parameters)
        return int(cursor.rowcount)


def in_chunks(message_ids: Sequence[int]) -> Iterable[Sequence[int]]:
    for start in range(0, len(message_ids), IN_CHUNK):
        yield message_ids[start : start + IN_CHUNK]


def among_each(column: str, ids: Sequence[int]) -> Iterable[Statement]:
    """Yield the conditions of `among` for ids that are many."""
    return (among(column, chunk) for chunk in in_chunks(ids))


def among(column: str, ids: Sequence[int]) -> Statement:
    """Return the condition that a column has one of the ids, and its parameters."""
    if is_postgresql():
        return f"{column} = ANY(%s)", [list(ids)]
    return f"{column} IN ({', '.join(['%s'] * len(ids))})", list(ids)


def rows_table(rows: Sequence[tuple[Any, ...]], names: Sequence[str], casts: Sequence[str]) -> Statement:
    """Return a table expression of rows with these columns and `number`, which counts from 1."""
    if is_postgresql():
        arrays = ", ".join(f"%s::{cast}[]" for cast in casts)
        columns = columns_of(rows) or [[] for _ in names]
        named = f"(SELECT * FROM unnest({arrays}) WITH ORDINALITY AS u({', '.join(names)}, number))"
        return named, columns
    values = ", ".join(f"json_extract(value, '$[{index}]') AS {name}" for index, name in enumerate(names))
    text = orjson.dumps([list(row) for row in rows]).decode()
    return f"(SELECT {values}, key + 1 AS number FROM json_each(%s))", [text]
