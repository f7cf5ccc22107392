"""Rows of files as messages, whatever the format: which columns become data, attributes and ordering key.

No Django here: Spark's tasks read it.
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import orjson

#: Larger integers are not those of orjson.
LEAST_INTEGER, MOST_INTEGER = -(2**63), 2**64 - 1
#: JSON has no numbers for these; protocol buffers write them as texts.
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that become data, attributes and ordering key. Without `data`, the data is the whole row in JSON."""

    data: str = ""
    attributes: Sequence[str] = ()
    ordering_key: str = ""

    def named(self) -> list[str]:
        return [name for name in (self.data, *self.attributes, self.ordering_key) if name]


@dataclass(frozen=True, slots=True)
class Row:
    """A message, or the reason why the row is not one, and its text. `line` is None in formats without lines."""

    line: int | None
    data: bytes = b""
    attributes: Mapping[str, str] | None = None
    ordering_key: str = ""
    reason: str = ""
    text: str = ""

    @property
    def size(self) -> int:
        """Return about how many bytes the message takes."""
        attributes = sum(len(name) + len(value) for name, value in (self.attributes or {}).items())
        return len(self.data) + attributes + len(self.ordering_key)


class RowError(Exception):
    """The reason why a row is not a message."""


def row_of(line: int | None, values: Mapping[str, Any], columns: Columns, *, whole: bytes | None = None) -> Row:
    """Return the message of a row. `whole` is the row in JSON, if it is in JSON already. Raises RowError.

    A value that is a map, a struct or an object becomes an attribute for each of its entries.
    """
    if columns.data:
        value = values.get(columns.data)
        data = bytes(value) if isinstance(value, bytes) else text_of(value).encode()
    else:
        data = _json(_plain(values)) if whole is None else whole
    attributes: dict[str, str] = {}
    for name in columns.attributes:
        value = values.get(name)
        entries = value if isinstance(value, Mapping) else {name: value}
        attributes |= {text_of(key): text_of(entry) for key, entry in entries.items() if entry is not None}
    return Row(line, data, attributes, text_of(values.get(columns.ordering_key)) if columns.ordering_key else "")


def text_of(value: Any) -> str:
    """Return a text as it is, None as "", bytes as UTF-8, and any other value as in JSON. Raises RowError."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise RowError("a value that should be text is not UTF-8") from None
    plain = value if isinstance(value, str) else _plain(value)
    return plain if isinstance(plain, str) else _json(plain).decode()


def _json(plain: Any) -> bytes:
    try:
        return orjson.dumps(plain)
    except orjson.JSONEncodeError as error:
        raise RowError(f"it cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Return a value in types of JSON, without its loss of digits. Entries without a value are left out."""
    match value:
        case None | str() | bool() | orjson.Fragment():
            return value
        case int():
            return value if LEAST_INTEGER <= value <= MOST_INTEGER else orjson.Fragment(str(value))
        case float():
            return value if math.isfinite(value) else NOT_FINITE[str(value)]
        case Decimal():
            return orjson.Fragment(format(value, "f"))
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"
        case date() | time():  # a datetime is a date
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds()}s"
        case bytes():
            return b64encode(value).decode()
        case Mapping():
            return {text_of(key): _plain(entry) for key, entry in value.items() if entry is not None}
        case list() | tuple():
            return [_plain(entry) for entry in value]
    return str(value)  # such as a UUID
