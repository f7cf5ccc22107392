"""Checks Avro's binary encoding against a schema. It keeps no values.

It doesn't use fastavro, which crashes on a message of two megabytes for a schema that refers to itself (segmentation
fault in 1.13.1), and anybody may send messages.
"""

from __future__ import annotations

from pushhub.common.elements import MOST_ELEMENTS
from subscriptions.schemarules.avro import AvroSchema, Part
from subscriptions.schemarules.limits import MAX_VALUE_DEPTH


class Mismatch(Exception):
    """The message doesn't match the schema. The text is for the publisher."""


def too_many_elements() -> Mismatch:
    return Mismatch(f"The message has more than {MOST_ELEMENTS} elements.")


def check_binary(schema: AvroSchema, data: bytes) -> None:
    """Raise Mismatch unless `data` is exactly one value of the schema."""
    reader = _Reader(schema, data)
    reader.value(schema.root, MAX_VALUE_DEPTH)
    if reader.at != len(data):
        raise Mismatch(f"{len(data) - reader.at} bytes are left over after the message.")


class _Reader:
    """A position in the bytes."""

    def __init__(self, schema: AvroSchema, data: bytes) -> None:
        self.schema = schema
        self.data = data
        self.at = 0
        self.left = MOST_ELEMENTS

    def value(self, part: Part, depth: int) -> None:
        """Skip one value of a part of the schema."""
        if depth <= 0:
            raise Mismatch(f"The message is nested more than {MAX_VALUE_DEPTH} levels deep.")
        if not self.left:
            raise too_many_elements()
        self.left -= 1
        part = self.schema.resolved(part)
        if isinstance(part, list):
            self.value(part[self.index(len(part), "union")], depth - 1)
        elif isinstance(part, str):
            self.primitive(part)
        elif part["type"] == "enum":
            self.index(len(part["symbols"]), "enum")
        elif part["type"] == "fixed":
            self.skip(part["size"])
        elif part["type"] in ("array", "map"):
            self.blocks(part, depth)
        else:
            for field in part["fields"]:
                self.value(field["type"], depth - 1)

    def primitive(self, name: str) -> None:
        if name == "boolean":
            if self.skip(1) not in (b"\0", b"\1"):
                raise Mismatch("A boolean must be 0 or 1.")
        elif name == "int":
            self.integer(32)
        elif name == "long":
            self.integer(64)
        elif name in ("float", "double"):
            self.skip(4 if name == "float" else 8)
        elif name == "bytes":
            self.skip(self.integer(64))
        elif name == "string":
            self.text()

    def text(self) -> None:
        try:
            self.skip(self.integer(64)).decode()
        except UnicodeDecodeError:
            raise Mismatch("A string must be UTF-8.") from None

    def blocks(self, part: Part, depth: int) -> None:
        """Skip an array or a map: blocks of a count and that many items. After a negative count, the block's size."""
        while count := self.integer(64):
            if count < 0:
                self.integer(64)
            for _ in range(abs(count)):
                if part["type"] == "map":
                    self.text()
                self.value(part["values"] if part["type"] == "map" else part["items"], depth - 1)

    def index(self, length: int, what: str) -> int:
        index = self.integer(32)
        if not 0 <= index < length:
            raise Mismatch(f"The {what} has no member {index}.")
        return index

    def integer(self, bits: int) -> int:
        """Read a zigzag number of variable length."""
        number = shift = 0
        while True:
            byte = self.skip(1)[0]
            number |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                break
            if shift >= 70:
                raise Mismatch("A number is too long.")
        if number >> bits:
            raise Mismatch(f"A number does not fit into {bits} bits.")
        return (number >> 1) ^ -(number & 1)

    def skip(self, count: int) -> bytes:
        end = self.at + count
        if count < 0 or end > len(self.data):
            raise Mismatch("The message ends early.")
        taken = self.data[self.at : end]
        self.at = end
        return taken
