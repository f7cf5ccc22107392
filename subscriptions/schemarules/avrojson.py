"""Checks JSON against an Avro schema. In Avro's JSON encoding, a union's value is wrapped in the name of its type."""

from __future__ import annotations

import orjson

from pushhub.common.elements import has_few_elements
from pushhub.common.errors import clipped
from subscriptions.schemarules.avro import AvroSchema, Part
from subscriptions.schemarules.avrobinary import Mismatch, too_many_elements
from subscriptions.schemarules.limits import MAX_VALUE_DEPTH

BITS = {"int": 32, "long": 64}


def check_json(schema: AvroSchema, data: bytes) -> None:
    """Raise Mismatch unless `data` is the JSON of one value of the schema."""
    if not has_few_elements(data):
        raise too_many_elements()
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise Mismatch(f"The message is not valid JSON: {error}") from None
    _check(schema, schema.root, value, "message", MAX_VALUE_DEPTH)


def _check(schema: AvroSchema, part: Part, value: object, path: str, depth: int) -> None:
    if depth <= 0:
        raise Mismatch(f"The message is nested more than {MAX_VALUE_DEPTH} levels deep.")
    part = schema.resolved(part)
    if isinstance(part, list):
        _check_union(schema, part, value, path, depth)
    elif isinstance(part, str):
        if not _is_primitive(part, value):
            raise _wrong(path, part)
    elif part["type"] in ("record", "error"):
        _check_record(schema, part, value, path, depth)
    elif part["type"] == "array":
        _check_items(schema, part, value, path, depth)
    elif part["type"] == "map":
        _check_map(schema, part, value, path, depth)
    elif part["type"] == "enum":
        if not isinstance(value, str) or value not in _choices(schema, part):
            raise _wrong(path, f"one of {', '.join(part['symbols'])}")
    elif not _is_bytes(value) or len(str(value)) != part["size"]:
        raise _wrong(path, f"a text of {part['size']} bytes")


def _check_record(schema: AvroSchema, part: Part, value: object, path: str, depth: int) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, f"the record {part['name']}")
    fields = {field["name"]: field["type"] for field in part["fields"]}
    for name in fields.keys() ^ value.keys():
        what = "is missing" if name in fields else "is not a field of the schema"
        raise Mismatch(f"{clipped(f'{path}.{name}')} {what}.")
    for name, kind in fields.items():
        _check(schema, kind, value[name], f"{path}.{name}", depth - 1)


def _check_items(schema: AvroSchema, part: Part, value: object, path: str, depth: int) -> None:
    if not isinstance(value, list):
        raise _wrong(path, "an array")
    for position, item in enumerate(value):
        _check(schema, part["items"], item, f"{path}[{position}]", depth - 1)


def _check_map(schema: AvroSchema, part: Part, value: object, path: str, depth: int) -> None:
    if not isinstance(value, dict):
        raise _wrong(path, "a map")
    for key, item in value.items():
        _check(schema, part["values"], item, f"{path}.{clipped(key)}", depth - 1)


def _check_union(schema: AvroSchema, part: Part, value: object, path: str, depth: int) -> None:
    branches = _choices(schema, part)
    if value is None and "null" in branches:
        return
    if not isinstance(value, dict) or len(value) != 1:
        raise _wrong(path, 'the value of a union, such as {"string": "..."}')
    [(name, inside)] = value.items()
    if name == "null" or name not in branches:
        raise _wrong(path, f"one of {', '.join(sorted(branches))}")
    _check(schema, branches[name], inside, f"{path}.{name}", depth - 1)


def _choices(schema: AvroSchema, part: Part) -> dict[str, Part]:
    """Return the branches of a union, or the symbols of an enum, by their names. There may be thousands of them.

    They are put together once, as a message may have a hundred thousand values to compare with them.
    """
    if id(part) not in schema.choices:
        schema.choices[id(part)] = _choices_of(schema, part)
    return schema.choices[id(part)]


def _choices_of(schema: AvroSchema, part: Part) -> dict[str, Part]:
    if isinstance(part, list):
        return {_branch_name(schema, branch): branch for branch in part}
    return dict.fromkeys(part["symbols"])


def _branch_name(schema: AvroSchema, branch: Part) -> str:
    """Return the full name of a named type, and the type of any other."""
    part = schema.resolved(branch)
    if isinstance(part, str):
        return part
    return str(part["name"] if "name" in part else part["type"])


def _is_primitive(name: str, value: object) -> bool:
    if name in BITS:
        bound = 1 << (BITS[name] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    if name in ("float", "double"):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if name == "boolean":
        return isinstance(value, bool)
    if name == "null":
        return value is None
    return _is_bytes(value) if name == "bytes" else isinstance(value, str)


def _is_bytes(value: object) -> bool:
    """Check that bytes are a text of the first 256 characters."""
    return isinstance(value, str) and all(character <= "\xff" for character in value)


def _wrong(path: str, wanted: str) -> Mismatch:
    return Mismatch(f"{clipped(path)} must be {clipped(wanted)}.")
