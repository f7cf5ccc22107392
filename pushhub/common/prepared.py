"""Queries whose SQL is compiled once, for code that runs for each message, where compiling would cost the most.

A query is written with the ORM as usual. A `slot` marks each value that changes between calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import QuerySet
from django.db.models.sql.compiler import SQLCompiler

_Compiled = tuple[SQLCompiler, str, tuple[Any, ...], Any]
Parsed = TypeVar("Parsed")
#: Parsed rows that are kept, and the bytes of their texts. Beyond that, all are forgotten and parsed again. A number
#: alone bounds nothing: a subscription may have 100 KB of functions, and each of its versions is a row.
MOST_PARSED = 20_000
MOST_PARSED_BYTES = 32 << 20


class PreparedRows:
    """The rows of a `values_list` query whose parameters are the slots, in the order of `slots`.

    `make` builds the query around the slots. A slot only marks a place: it must differ from the other slots and from
    every other parameter of the query, and have the type of the values that replace it.
    """

    def __init__(self, make: Callable[..., QuerySet[Any, Any]], *, slots: tuple[str | int, ...]) -> None:
        self._make = make
        self._slots = slots
        # A compiler belongs to its connection, and a connection belongs to its thread.
        self._local = threading.local()

    def __call__(self, *values: str | int) -> Iterator[Sequence[Any]]:
        """Return the rows for these values, one per slot."""
        return self.converted(self.raw(*values))

    def raw(self, *values: str | int) -> list[tuple[Any, ...]]:
        """Return the rows for these values, one per slot, with columns as the database's driver returns them."""
        _, sql, parameters, _ = self._compiled()
        replacements = dict(zip(self._slots, values, strict=True))
        with connection.cursor() as cursor:
            cursor.execute(sql, [replacements.get(parameter, parameter) for parameter in parameters])
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def converted(self, rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[Any]]:
        """Yield raw rows with columns as the model's fields return them."""
        compiler, _, _, converters = self._compiled()
        return iter(compiler.apply_converters(rows, converters))

    def _compiled(self) -> _Compiled:
        compiled: _Compiled | None = getattr(self._local, "compiled", None)
        if compiled is None:
            compiler = self._make(*self._slots).query.get_compiler(using=DEFAULT_DB_ALIAS)
            sql, parameters = compiler.as_sql()
            missing = [slot for slot in self._slots if slot not in parameters]
            if missing:
                raise ValueError(f"slots that the query does not have as parameters: {missing}")
            converters = compiler.get_converters([selected[0] for selected in compiler.select])
            compiled = self._local.compiled = (compiler, sql, tuple(parameters), converters)
        return compiled


class ParsedRows(Generic[Parsed]):
    """The rows of a prepared query as objects, which must not be changed: equal rows share one.

    Every call reads the database, so nothing is out of date. Most rows are the same as last time, and only a row that
    was not seen before is converted and parsed.
    """

    def __init__(self, rows: PreparedRows, parse: Callable[[Sequence[Any]], Parsed]) -> None:
        self._rows = rows
        self._parse = parse
        self._parsed: dict[tuple[Any, ...], Parsed] = {}
        self._bytes = 0

    def __call__(self, *values: str | int) -> list[Parsed]:
        """Return the objects for these values, one per slot of the query."""
        rows = self._rows.raw(*values)
        parsed = self._parsed
        try:
            return [parsed[row] for row in rows]
        except KeyError:
            new_bytes = sum(_text_bytes(row) for row in rows if row not in parsed)
            if len(parsed) + len(rows) > MOST_PARSED or self._bytes + new_bytes > MOST_PARSED_BYTES:
                parsed = self._parsed = {}
                self._bytes, new_bytes = 0, sum(map(_text_bytes, rows))
            self._bytes += new_bytes
        return [parsed[row] if row in parsed else self._parse_new(row, parsed) for row in rows]

    def _parse_new(self, row: tuple[Any, ...], parsed: dict[tuple[Any, ...], Parsed]) -> Parsed:
        [converted] = self._rows.converted([row])
        parsed[row] = self._parse(converted)
        return parsed[row]


def _text_bytes(row: Sequence[Any]) -> int:
    return sum(len(value) for value in row if isinstance(value, (str, bytes)))
