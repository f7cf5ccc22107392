"""Queries whose SQL is compiled once, for code that runs for each message, where compiling would cost the most.

A query is written with the ORM as usual. A `slot` marks each value that changes between calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection
from django.db.models import QuerySet
from django.db.models.sql.compiler import SQLCompiler

_Compiled = tuple[SQLCompiler, str, tuple[Any, ...], Any]


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
        compiler, sql, parameters, converters = self._compiled()
        replacements = dict(zip(self._slots, values, strict=True))
        with connection.cursor() as cursor:
            cursor.execute(sql, [replacements.get(parameter, parameter) for parameter in parameters])
            return iter(compiler.apply_converters(cursor.fetchall(), converters))

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
