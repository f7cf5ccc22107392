"""Avro definitions. fastavro parses them after their size and depth are known to be harmless."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import orjson

from pushhub.common.errors import FailedPrecondition, InvalidArgument, clipped
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES, MAX_DEFINITION_DEPTH

#: A part of a definition: the name of a type, a list of the parts of a union, or an object with a `type`.
Part = Any
PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
COMPLEX = ("record", "error", "enum", "fixed", "array", "map")
#: Where a definition has this, fastavro believes that it was parsed before, and takes all that it has as it is.
PARSED = "__fastavro_parsed"
#: What fastavro raises besides its own error, as it assumes that a definition is well-formed.
PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, AssertionError, RecursionError)


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """A parsed definition and its named parts."""

    root: Part
    named: dict[str, Part]
    #: The names among which JSON chooses a branch of a union, or a symbol of an enum, by the part's identity.
    choices: dict[int, dict[str, Part]] = field(default_factory=dict)

    def resolved(self, part: Part) -> Part:
        """Return the part that a name stands for. Primitive types stand for themselves."""
        while True:
            if isinstance(part, dict) and part["type"] not in COMPLEX:
                part = part["type"]
            elif isinstance(part, str) and part not in PRIMITIVES:
                part = self.named[part]
            else:
                return part


def parse_avro(definition: str) -> AvroSchema:
    """Return the schema of an Avro definition, which has one type at its top and no union; else InvalidArgument.

    Raises FailedPrecondition if the parser is missing.
    """
    require_extra("fastavro", "parser of Avro")
    from fastavro.schema import SchemaParseException, parse_schema

    try:
        parsed = orjson.loads(definition)
    except orjson.JSONDecodeError as error:
        raise invalid_definition(f"not valid JSON: {error}") from None
    _check_depth(parsed)
    if isinstance(parsed, list):
        raise invalid_definition("an Avro definition must have one type at its top, and not a union.")
    if isinstance(parsed, dict):
        parsed.pop(PARSED, None)
    named: dict[str, Part] = {}
    try:
        schema = AvroSchema(parse_schema(parsed, named, _write_hint=False), named)
        _check_parts(schema)
    except (SchemaParseException, *PARSE_ERRORS) as error:
        raise invalid_definition(f"{type(error).__name__}: {error}") from None
    return schema


def require_extra(package: str, what: str) -> None:
    """Raise FailedPrecondition in an installation without the extra `schemas`, to which the package belongs."""
    if find_spec(package) is None:
        raise FailedPrecondition(f"This server has no {what}: pip install 'pushhub[schemas]'")


def invalid_definition(why: str) -> InvalidArgument:
    return InvalidArgument(f"Schema definition is invalid: {clipped(why)}", field="schema.definition")


def _check_depth(definition: object) -> None:
    """Check the nesting level by level, so that the check itself doesn't recurse."""
    level: list[object] = [definition]
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
    """Check that items of a list take room, so that a message of few bytes can't stand for billions of values."""
    parts = [schema.root, *schema.named.values()]
    known: dict[int, bool] = {}
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            if any(isinstance(branch, list) for branch in part):
                raise invalid_definition("a union must not contain a union.")
            parts.extend(part)
        if not isinstance(part, dict):
            continue
        if part["type"] == "fixed" and (type(part["size"]) is not int or not 0 <= part["size"] <= MAX_DEFINITION_BYTES):
            raise invalid_definition("a fixed type has an impossible size.")
        if part["type"] == "array" and not _takes_room(schema, part["items"], known):
            raise invalid_definition("the items of an array must not all be empty.")
        fields = part.get("fields", ())
        if not all(isinstance(field["name"], str) for field in fields):
            raise invalid_definition("a field's name must be a string.")
        parts.extend(field["type"] for field in fields)
        parts.extend(part[inside] for inside in ("items", "values") if inside in part)
        if isinstance(part["type"], (dict, list)):
            parts.append(part["type"])


def _takes_room(schema: AvroSchema, part: Part, known: dict[int, bool]) -> bool:
    """Whether each value has at least one byte. A record that contains itself has no finite values at all.

    `known` has the answers for records, to which thousands of arrays may refer.
    """
    part = schema.resolved(part)
    if not isinstance(part, dict):
        return bool(part != "null")
    if part["type"] == "fixed":
        return bool(part["size"])
    if part["type"] not in ("record", "error"):
        return True
    if id(part) not in known:
        known[id(part)] = False
        known[id(part)] = any(_takes_room(schema, field["type"], known) for field in part["fields"])
    return known[id(part)]
