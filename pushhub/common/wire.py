"""Counts the fields of a serialized request or message before protobuf creates objects from it.

An empty message in a repeated field takes two bytes on the wire and a hundred in memory, so a bound on bytes alone does
not bound the memory of a request.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pushhub.common.errors import InvalidArgument

#: A publish request of 1000 messages with 100 attributes each has 104,001 fields.
MOST_FIELDS = 110_000
#: The smallest size of a field.
LEAST_FIELD_BYTES = 2
#: Shorter messages inside a request aren't parsed, because a publish request has a thousand of them. They count as one
#: field per SMALL_FIELD_BYTES.
SMALL_MESSAGE_BYTES = 2048
SMALL_FIELD_BYTES = 32

#: The parser's own limit.
MOST_LEVELS = 100

VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)
SIZES = {FIXED64: 8, FIXED32: 4, START_GROUP: 0, END_GROUP: 0}

#: A repeated field of numbers in packed form holds nothing but numbers, of this many bytes each. 0: of variable length.
PACKED_SIZES = {
    FieldDescriptor.TYPE_DOUBLE: 8,
    FieldDescriptor.TYPE_FIXED64: 8,
    FieldDescriptor.TYPE_SFIXED64: 8,
    FieldDescriptor.TYPE_FLOAT: 4,
    FieldDescriptor.TYPE_FIXED32: 4,
    FieldDescriptor.TYPE_SFIXED32: 4,
}
#: The last byte of a number of variable length has no high bit.
CONTINUED = bytes(range(0x80, 0x100))

#: By kind of message and number of a field with a length, what is inside: a kind of message, or the size of packed
#: numbers.
Known = dict[Any, dict[int, Any]]
_API: Known = {}


class _Malformed(Exception):
    """The bytes end in the middle of a field, or nest too deeply. The real parser reports the error."""


def check_fields(
    kind: type[Message], data: bytes, *, known: Known = _API, small_bytes: int = SMALL_MESSAGE_BYTES
) -> None:
    """Refuse a request with more than MOST_FIELDS fields, including those of nested messages.

    `known` keeps what is looked up of kinds. Kinds of schemas come and go, and need a dictionary of their own.
    """
    if len(data) <= MOST_FIELDS * LEAST_FIELD_BYTES:
        return
    try:
        left = _Count(data, known, small_bytes).message(kind.DESCRIPTOR, 0, len(data), left=MOST_FIELDS)
    except _Malformed:
        return
    if left < 0:
        raise _too_many()


def _too_many() -> InvalidArgument:
    return InvalidArgument(f"The request has more than {MOST_FIELDS} fields.")


class _Count:
    """Counts the fields of nested messages in the same bytes."""

    def __init__(self, data: bytes, known: Known, small_bytes: int) -> None:
        self._data = data
        self._known = known
        self._small_bytes = small_bytes
        self._depth = 0

    def message(self, kind: Any, at: int, end: int, *, left: int) -> int:
        """Return how many fields may still come after those of the message at `data[at:end]`."""
        data = self._data
        inside = self._known.get(kind)
        if inside is None:
            fields = ((field.number, _inside(field)) for field in kind.fields)
            inside = self._known[kind] = {number: what for number, what in fields if what is not None}
        while at < end:
            left -= 1
            if left < 0:
                raise _too_many()
            tag, at = _varint(data, at, end)
            form = tag & 7
            if form == LENGTH:
                length, at = _varint(data, at, end)
                if at + length > end:
                    raise _Malformed
                left = self._after(inside.get(tag >> 3), at, length, left=left)
                at += length
            elif form == VARINT:
                at = _varint(data, at, end)[1]
            elif form in SIZES:
                at += SIZES[form]
            else:
                raise _Malformed
        return left

    def _after(self, what: Any, at: int, length: int, *, left: int) -> int:
        """Return how many fields may still come after a field with a length."""
        if what is None:
            return left
        if isinstance(what, int):
            packed = self._data[at : at + length]
            return left - (length // what if what else len(packed.translate(None, CONTINUED)))
        if length <= self._small_bytes:
            return left - length // SMALL_FIELD_BYTES
        self._depth += 1
        if self._depth > MOST_LEVELS:
            raise _Malformed
        left = self.message(what, at, at + length, left=left)
        self._depth -= 1
        return left


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Malformed


def _inside(field: Any) -> Any:
    """Return what a field with a length contains: another message, or packed numbers; None for anything else."""
    if field.message_type is None:
        return PACKED_SIZES.get(field.type, 0) if field.is_packed else None
    kind = field.message_type
    if kind.GetOptions().map_entry and kind.fields_by_name["value"].message_type is None:
        return None  # one key and one value, whatever they contain
    return kind
