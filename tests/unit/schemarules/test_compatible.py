"""Which definitions may be revisions of one schema."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from subscriptions.schemarules import compatible
from subscriptions.schemarules.compatible import fault_between
from subscriptions.schemarules.validators import AVRO, PROTOCOL_BUFFER, Parsed, compile_definition


def avro(*fields: dict[str, Any]) -> Parsed:
    record = {"type": "record", "name": "R", "namespace": "shop", "fields": fields}
    return compile_definition(AVRO, orjson.dumps(record).decode()).parsed()


def avro_fault(new: list[Any], old: list[Any]) -> str:
    """Return the fault between two records, whose fields have these types; a pair is a type and its default."""
    return fault_between(*(avro(*map(field, "abc"[: len(kinds)], kinds)) for kinds in (new, old)))


def field(name: str, kind: Any) -> dict[str, Any]:
    return (
        {"name": name, "type": kind[0], "default": kind[1]} if isinstance(kind, tuple) else {"name": name, "type": kind}
    )


def enum(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": symbols, **more}


def fixed(size: int, name: str = "F") -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def inner(*kinds: Any, name: str = "I") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{at}", "type": k} for at, k in enumerate(kinds)]}


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (["int"], ["int"]),
        (["int", ("string", "")], ["int"]),
        (["int"], ["int", (["null", "string"], None)]),
        (["string"], ["bytes"]),
        ([["null", "int"]], [["int", "null"]]),
        ([enum("A", "B", default="A")], [enum("A", "C", default="A")]),
        ([{"type": "array", "items": "R"}], [{"type": "array", "items": "shop.R"}]),
        ([["null", inner("string")]], [["null", inner("bytes")]]),
        ([{"type": "long", "logicalType": "timestamp-millis"}], ["long"]),
    ],
)
def test_avro_definitions_that_read_each_other_are_compatible(new: list[Any], old: list[Any]) -> None:
    assert avro_fault(new, old) == avro_fault(old, new) == ""


@pytest.mark.parametrize(
    ("new", "old", "fault"),
    [
        (["int"], ["string"], "shop.R.a: the type string can't be read as int"),
        (["long"], ["int"], "shop.R.a: the type long can't be read as int"),
        ([["null", "int"]], ["int"], "shop.R.a: the type null can't be read as int"),
        ([["null", "int"]], [["null", "string"]], "shop.R.a: the type string is missing in a union"),
        (["int", "int"], ["int"], "shop.R.b: a field that not every revision has needs a default"),
        (["int"], ["int", "int"], "shop.R.b: a field that not every revision has needs a default"),
        ([enum("A", "B")], [enum("A")], "shop.R.a: B is missing in shop.E"),
        ([fixed(2)], [fixed(3)], "shop.R.a: the size of shop.F differs"),
        ([fixed(2)], [fixed(2, "G")], "shop.R.a: the type shop.G can't be read as shop.F"),
        ([fixed(2)], ["int"], "shop.R.a: the type int can't be read as shop.F"),
        ([{"type": "map", "values": "int"}], [{"type": "array", "items": "int"}], "shop.R.a: the type array can't"),
        ([{"type": "map", "values": "int"}], [{"type": "map", "values": "string"}], "the type string can't be read as"),
        ([["R", inner("R")]], [["R", inner("int")]], "shop.R.a: the type shop.I is missing in a union"),
    ],
)
def test_other_avro_definitions_are_not(new: list[Any], old: list[Any], fault: str) -> None:
    assert fault in avro_fault(new, old)
    assert avro_fault(old, new)


def test_definitions_are_compared_in_bounded_time_and_depth() -> None:
    """Given records that each contain the one before, or more parts than are compared, then the answer is a refusal."""
    records = [inner("int", name="I0"), *(inner(f"I{at - 1}", name=f"I{at}") for at in range(1, 2000))]
    last = {"name": "last", "type": "I1999"}
    new, old = (avro({"name": name, "type": inner(*records, name=name), "default": {}}, last) for name in ("N", "O"))
    assert fault_between(new, old) == compatible.TOO_LARGE
    union = [inner(name=f"I{at}") for at in range(400)]
    assert avro_fault([union], [union[::-1]]) == compatible.TOO_LARGE


def proto_fault(new: str, old: str) -> str:
    parsed = []
    for body in (new, old):
        definition = body if body.startswith("syntax") else f'syntax = "proto3"; package shop; message R {{ {body} }}'
        parsed.append(compile_definition(PROTOCOL_BUFFER, definition).parsed())
    return fault_between(*parsed)


REQUIRED = 'syntax = "proto2"; message R { required int32 a = 1; %s }'


@pytest.mark.parametrize(
    ("new", "old"),
    [
        ("int32 a = 1; string b = 2;", "int32 a = 1;"),
        ("int32 a = 1;", "int32 a = 1; repeated string c = 9;"),
        ("message I { int32 x = 1; R r = 2; } I i = 1;", "message I { R r = 2; } I i = 1;"),
        ("map<string, int32> m = 1;", "map<string, int32> m = 1; enum Unused { ZERO = 0; }"),
        (REQUIRED % "optional int32 b = 2;", REQUIRED % ""),
    ],
)
def test_optional_fields_of_protocol_buffers_come_and_go(new: str, old: str) -> None:
    assert proto_fault(new, old) == proto_fault(old, new) == ""


@pytest.mark.parametrize(
    ("new", "old", "fault"),
    [
        (
            "string a = 1;",
            "int64 a = 1;",
            "shop.R.a = 1 of type string is not compatible with shop.R.a = 1 of type int64",
        ),
        (
            "int64 b = 1;",
            "int64 a = 1;",
            "shop.R.b = 1 of type int64 is not compatible with shop.R.a = 1 of type int64",
        ),
        (
            "int64 a = 2;",
            "int64 a = 1;",
            "shop.R.a = 2 of type int64 is not compatible with shop.R.a = 1 of type int64",
        ),
        ("repeated int64 a = 1;", "int64 a = 1;", "shop.R.a = 1 of type repeated int64 is not compatible with"),
        ("enum E { A = 0; B = 5; } E e = 1;", "enum E { A = 0; } E e = 1;", "B = 5 is missing in shop.R.E"),
        ("enum E { A = 0; } E e = 1;", "enum E { A = 0; B = 5; } E e = 1;", "B = 5 is missing in shop.R.E"),
        (
            "message I { int32 x = 1; } I i = 1;",
            "message I { bool x = 1; } I i = 1;",
            "shop.R.I.x = 1 of type int32 is",
        ),
        (REQUIRED % "required int32 b = 2;", REQUIRED % "", "R.b is required, and not every revision has it"),
        (REQUIRED % "", REQUIRED % "required int32 b = 2;", "R.b is required, and not every revision has it"),
    ],
)
def test_other_changes_of_protocol_buffers_are_incompatible(new: str, old: str, fault: str) -> None:
    assert fault in proto_fault(new, old)
