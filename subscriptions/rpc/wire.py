"""Counts the fields of a serialized request before protobuf creates objects from it.

An empty message in a repeated field takes two bytes on the wire and a hundred in memory, so a bound on bytes alone does
not bound the memory of a request.
"""

from __future__ import annotations

from functools import cache
from typing import Any

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

VARINT, FIXED64, LENGTH, START_GROUP, END_GROUP, FIXED32 = range(6)
SIZES = {FIXED64: 8, FIXED32: 4, START_GROUP: 0, END_GROUP: 0}

#: Marks a repeated field of numbers. In packed form, each number may take a single byte.
PACKED = object()


class _Malformed(Exception):
    """The bytes end in the middle of a field. The real parser reports the error."""


def check_fields(kind: type[Message], data: bytes) -> None:
    """Refuse a request with more than MOST_FIELDS fields, including those of nested messages."""
    if len(data) <= MOST_FIELDS * LEAST_FIELD_BYTES:
        return
    try:
        left = _count(kind.DESCRIPTOR, data, 0, len(data), left=MOST_FIELDS)
    except _Malformed:
        return
    if left < 0:
        raise _too_many()


def _too_many() -> InvalidArgument:
    return InvalidArgument(f"The request has more than {MOST_FIELDS} fields.")


def _count(kind: Any, data: bytes, at: int, end: int, *, left: int) -> int:
    """Return how many fields may still come after those of the message at `data[at:end]`."""
    inside = _inside_of(kind)
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
            what = inside.get(tag >> 3)
            if what is PACKED:
                left -= length
            elif what is not None and length <= SMALL_MESSAGE_BYTES:
                left -= length // SMALL_FIELD_BYTES
            elif what is not None:
                left = _count(what, data, at, at + length, left=left)
            at += length
        elif form == VARINT:
            at = _varint(data, at, end)[1]
        elif form in SIZES:
            at += SIZES[form]
        else:
            raise _Malformed
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


@cache
def _inside_of(kind: Any) -> dict[int, Any]:
    """Return, by field number, what length-delimited fields contain: another message or packed numbers."""
    return {field.number: what for field in kind.fields if (what := _inside(field)) is not None}


def _inside(field: Any) -> Any:
    if field.message_type is None:
        return PACKED if field.is_packed else None
    kind = field.message_type
    if kind.GetOptions().map_entry and kind.fields_by_name["value"].message_type is None:
        return None  # one key and one value, whatever they contain
    return kind
