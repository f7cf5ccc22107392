"""Avro definitions, parsed by fastavro once their size and depth are known to be harmless."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import fastavro
import orjson
from fastavro.schema import SchemaParseException, UnknownType

from pushhub.common.errors import InvalidArgument, clipped
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES, MAX_DEFINITION_DEPTH

#: A part of a definition: the name of a type, a union's list of parts, or an object with a `type`.
Part = Any
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
COMPLEX = ("record", "error", "enum", "fixed", "array", "map")
#: fastavro looks into what it is given as if it were in order.
PARSE_ERRORS = (SchemaParseException, UnknownType, ValueError, TypeError, LookupError, AttributeError, AssertionError)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed definition, and those of its parts that have names."""

    root: Part
    named: dict[str, Part]

    def resolved(self, part: Part) -> Part:
        """What a name stands for; primitive types stand for themselves."""
        while True:
            if isinstance(part, dict) and part["type"] not in COMPLEX:
                part = part["type"]
            elif isinstance(part, str) and part not in PRIMITIVES:
                part = self.named[part]
            else:
                return part


def avro_parse(definition: str) -> AvroSchema:
    """The schema of an Avro definition; InvalidArgument if it is none. Its top must be a record."""
    try:
        given = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise invalid_definition(f"not valid JSON: {error}") from None
    _check_depth(given)
    if not isinstance(given, dict) or given.get("type") != "record":
        raise invalid_definition("an Avro definition must be a record.")
    named: dict[str, Part] = {}
    try:
        found = AvroSchema(fastavro.parse_schema(given, named, _write_hint=False), named)
        _check_parts(found)
    except (*PARSE_ERRORS, RecursionError) as error:
        raise invalid_definition(f"{type(error).__name__}: {error}") from None
    return found


def invalid_definition(why: str) -> InvalidArgument:
    return InvalidArgument(f"Schema definition is invalid: {clipped(why)}", field="schema.definition")


def _check_depth(given: object) -> None:
    """Level by level, so that the check itself does not recurse."""
    level: list[object] = [given]
    for _ in range(MAX_DEFINITION_DEPTH):
        level = [inside for part in level for inside in _inside(part)]
        if not level:
            return
    raise invalid_definition(f"it is nested more than {MAX_DEFINITION_DEPTH} levels deep.")


def _inside(part: object) -> Iterable[object]:
    if isinstance(part, dict):
        return part.values()
    return part if isinstance(part, list) else ()


def _check_parts(schema: AvroSchema) -> None:
    """A message of few bytes must not stand for billions of values: items of a list must take room."""
    parts = [schema.root, *schema.named.values()]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        if part["type"] == "fixed" and not 0 <= part["size"] <= MAX_DEFINITION_BYTES:
            raise invalid_definition("a fixed type has an impossible size.")
        if part["type"] == "array" and not _takes_room(schema, part["items"], seen=set()):
            raise invalid_definition("the items of an array must not all be empty.")
        parts.extend(field["type"] for field in part.get("fields", ()))
        parts.extend(part[inside] for inside in ("items", "values") if inside in part)
        if isinstance(part["type"], (dict, list)):
            parts.append(part["type"])


def _takes_room(schema: AvroSchema, part: Part, *, seen: set[int]) -> bool:
    """Whether each value has a byte at least. A record that holds itself has no end, and thus no values at all."""
    part = schema.resolved(part)
    if not isinstance(part, dict):
        return bool(part != "null")
    if part["type"] == "fixed":
        return bool(part["size"])
    if part["type"] not in ("record", "error"):
        return True
    if id(part) in seen:
        return False
    seen.add(id(part))
    return any(_takes_room(schema, field["type"], seen=seen) for field in part["fields"])
