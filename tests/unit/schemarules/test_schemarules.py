"""Definitions and messages, and what hostile ones get: an answer, in bounded time and depth."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import fastavro
import orjson
import pytest

from pushhub.common.elements import MOST_ELEMENTS
from pushhub.common.errors import InvalidArgument
from subscriptions.schemarules import avro as avro_definitions
from subscriptions.schemarules import avrojson, protobuf
from subscriptions.schemarules.avrobinary import Mismatch
from subscriptions.schemarules.limits import MAX_VALUE_DEPTH
from subscriptions.schemarules.validators import Validator, compile_definition

EVERYTHING = {
    "type": "record",
    "name": "All",
    "namespace": "shop",
    "fields": [
        {"name": "flag", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "large", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "ratio", "type": "double"},
        {"name": "raw", "type": "bytes"},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "words", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "other", "type": ["null", "Colour"]},
        {"name": "next", "type": ["null", "All"]},
    ],
}
VALUE: dict[str, Any] = {
    "flag": True,
    "small": -5,
    "large": 1_700_000_000_000,
    "ratio": 0.5,
    "raw": b"\xff\x00",
    "colour": "RED",
    "code": b"ab",
    "words": ["a", "ü"],
    "counts": {"x": 1},
    "other": "BLUE",
    "next": None,
}


def avro(schema: object) -> dict[str, Validator]:
    return compile_definition("AVRO", orjson.dumps(schema).decode()).validators()


def binary(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(EVERYTHING, {}), value)
    return out.getvalue()


def json_text(**changes: object) -> bytes:
    value = {**VALUE, "raw": "\xff\x00", "code": "ab", "other": {"shop.Colour": "BLUE"}, **changes}
    return orjson.dumps(value)


def test_what_fastavro_writes_is_accepted_nested_or_not() -> None:
    check = avro(EVERYTHING)["BINARY"]
    check(binary(VALUE))
    check(binary({**VALUE, "next": {**VALUE, "next": VALUE}}))


def test_a_binary_message_cut_anywhere_or_with_more_after_it_is_refused() -> None:
    check, whole = avro(EVERYTHING)["BINARY"], binary(VALUE)
    for end in range(len(whole)):
        with pytest.raises(Mismatch):
            check(whole[:end])
    with pytest.raises(Mismatch, match="1 bytes are left over"):
        check(whole + b"\0")


def test_random_bytes_end_in_a_mismatch_or_pass() -> None:
    dice, check = random.Random(1), avro(EVERYTHING)["BINARY"]
    whole = bytearray(binary(VALUE))
    for _ in range(3000):
        noisy = bytearray(whole)
        noisy[dice.randrange(len(noisy))] = dice.randrange(256)
        try:
            check(bytes(noisy))
        except Mismatch:
            continue


def test_a_message_that_nests_for_ever_is_refused_in_both_encodings() -> None:
    chain = avro({"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]})
    chain["BINARY"](b"\x02" * 20 + b"\0")
    with pytest.raises(Mismatch, match=f"more than {MAX_VALUE_DEPTH} levels"):
        chain["BINARY"](b"\x02" * 2_000_000 + b"\0")
    deep = b'{"next":{"L":' * 200 + b'{"next":null}' + b"}}" * 200
    with pytest.raises(Mismatch, match=f"more than {MAX_VALUE_DEPTH} levels"):
        chain["JSON"](deep)


@pytest.mark.parametrize("empty", ["null", {"type": "record", "name": "E", "fields": []}])
def test_few_bytes_must_not_stand_for_billions_of_items(empty: object) -> None:
    hostile = {"type": "record", "name": "A", "fields": [{"name": "b", "type": {"type": "array", "items": empty}}]}
    with pytest.raises(InvalidArgument, match="must not all be empty"):
        avro(hostile)


def test_a_definition_that_says_it_was_parsed_is_parsed_all_the_same() -> None:
    """The parser believed it. Two names that stand for each other then kept a thread for ever."""
    items = {"type": "array", "items": "A"}
    hostile = {"type": "record", "name": "R", "fields": [{"name": "x", "type": items}], "__fastavro_parsed": True}
    with pytest.raises(InvalidArgument, match="UnknownType: A"):
        avro({**hostile, "__named_schemas": {"A": "B", "B": "A"}})
    avro({**EVERYTHING, "__fastavro_parsed": True, "__named_schemas": 7})["BINARY"](binary(VALUE))


@pytest.mark.parametrize(
    ("kind", "json", "data", "wrong"),
    [
        ("string", b'"a"', b"\x02a", b"7"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"7", b"\x0e", b'"7"'),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b'"A"', b"\0", b'"B"'),
        ({"type": "fixed", "name": "F", "size": 2}, b'"ab"', b"ab", b'"a"'),
        ({"type": "array", "items": ["null", "int"]}, b'[null,{"int":1}]', b"\x04\0\x02\x02\0", b"[1]"),
        ({"type": "map", "values": "int"}, b'{"a":1}', b"\x02\x02a\x02\0", b'{"a":"1"}'),
    ],
)
def test_a_definition_may_have_any_type_at_its_top(kind: object, json: bytes, data: bytes, wrong: bytes) -> None:
    checks = avro(kind)
    checks["JSON"](json)
    checks["BINARY"](data)
    for encoding, refused in (("JSON", wrong), ("BINARY", data + b"\0"), ("BINARY", b"")):
        with pytest.raises(Mismatch):
            checks[encoding](refused)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        (["null", "string"], "one type at its top, and not a union"),
        ("missing", "UnknownType"),
        (7, "TypeError"),
        ({"type": "array", "items": "null"}, "must not all be empty"),
        ({"type": "fixed", "name": "F", "size": 1.5}, "impossible size"),
        ({"type": "map", "values": ["int", ["null"]]}, "must not contain a union"),
        ({"type": "record", "name": "R", "fields": [{"name": {}, "type": "int"}]}, "name must be a string"),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(definition: object, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        avro(definition)


def test_a_record_to_which_many_arrays_refer_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A definition of 280 KB took 4.6 s."""
    looks = Mock(side_effect=avro_definitions._takes_room)
    monkeypatch.setattr(avro_definitions, "_takes_room", looks)
    last = {"name": "last", "type": "int"}
    wide = {"type": "record", "name": "R", "fields": [*({"name": f"n{i}", "type": "null"} for i in range(50)), last]}
    lists = [{"name": f"l{i}", "type": {"type": "array", "items": "R"}} for i in range(50)]
    avro({"type": "record", "name": "A", "fields": [{"name": "r", "type": wide}, *lists]})
    assert looks.call_count < 50 * 50


def test_what_json_chooses_from_is_put_together_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message of 25 KB took 3.5 s with a union of 3,500 branches."""
    choices = Mock(side_effect=avrojson._choices_of)
    monkeypatch.setattr(avrojson, "_choices_of", choices)
    colour = {"type": "enum", "name": "Colour", "symbols": ["RED", "BLUE"]}
    item = {"type": "array", "items": [colour, "null"]}
    check = avro({"type": "record", "name": "A", "fields": [{"name": "x", "type": item}]})["JSON"]
    for _ in range(2):
        check(orjson.dumps({"x": [None, {"Colour": "RED"}, {"Colour": "BLUE"}] * 20}))
    assert choices.call_count == 2


def test_the_json_of_a_message_is_accepted() -> None:
    avro(EVERYTHING)["JSON"](json_text())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flag", 1),
        ("small", 1 << 31),
        ("small", True),
        ("large", "7"),
        ("ratio", "0.5"),
        ("raw", "\u0100"),
        ("colour", "GREEN"),
        ("code", "abc"),
        ("words", ["a", None]),
        ("counts", {"x": "1"}),
        ("other", "BLUE"),
        ("other", {"string": "BLUE"}),
        ("other", {"shop.Colour": "GREEN"}),
        ("extra", 1),
    ],
)
def test_a_json_field_of_the_wrong_kind_is_named(field: str, value: object) -> None:
    with pytest.raises(Mismatch, match=f"message.{field}"):
        avro(EVERYTHING)["JSON"](json_text(**{field: value}))


def test_a_json_message_needs_every_field() -> None:
    with pytest.raises(Mismatch, match="message.small is missing"):
        avro(EVERYTHING)["JSON"](
            orjson.dumps({**orjson.loads(json_text()), "small": None}).replace(b'"small":null,', b"")
        )


TREE = """syntax = "proto3"; message M {
  repeated M next = 1; repeated int64 varints = 2; repeated double doubles = 3; string text = 4;
}"""


def tree() -> dict[str, Validator]:
    return compile_definition("PROTOCOL_BUFFER", TREE).validators()


def longs() -> dict[str, Validator]:
    return avro({"type": "record", "name": "L", "fields": [{"name": "n", "type": {"type": "array", "items": "long"}}]})


def length(size: int) -> bytes:
    """Return a varint of three bytes."""
    return bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])


MANY = MOST_ELEMENTS + 1
#: The schema, the encoding, and a message of many elements.
HOSTILE: dict[str, tuple[Callable[[], dict[str, Validator]], str, bytes]] = {
    "Avro": (longs, "BINARY", b"\x80\x89\x7a" + bytes(1_000_001)),
    "Avro's JSON": (longs, "JSON", b'{"n":[' + b"1," * MANY + b"1]}"),
    "protobuf's JSON": (tree, "JSON", b'{"next":[' + b"{}," * MANY + b"{}]}"),
    "protobuf": (tree, "BINARY", b"\x0a\x00" * MANY),
    "protobuf, in a message": (tree, "BINARY", b"\x0a" + length(2 * MANY) + b"\x0a\x00" * MANY),
    "protobuf, in small messages": (tree, "BINARY", (b"\x0a\x64" + b"\x0a\x00" * 50) * (MANY // 50)),
    "protobuf, packed": (tree, "BINARY", b"\x12" + length(2 * MANY) + b"\1" * 2 * MANY),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_message_of_many_elements_is_refused_before_they_become_objects(name: str) -> None:
    """Two bytes became 35 and more: a message of 10 MB took 230 MB."""
    schema, encoding, data = HOSTILE[name]
    with pytest.raises(Mismatch, match=f"more than {MOST_ELEMENTS} elements"):
        schema()[encoding](data)


def test_many_objects_of_a_wide_type_are_refused() -> None:
    """55,000 of them, in 165 KB, took four minutes, as the parser goes through all fields for each."""
    wide = "message Wide { " + "".join(f"int32 f{number} = {number};" for number in range(1, 1001)) + " }"
    definition = f'syntax = "proto3"; message M {{ repeated Wide wide = 1; repeated M next = 2; {wide} }}'
    check = compile_definition("PROTOCOL_BUFFER", definition).validators()["JSON"]
    check(b'{"wide":[' + b"{}," * 100 + b"{}]}")
    with pytest.raises(Mismatch, match="too many objects for types of up to 1000 fields"):
        check(b'{"wide":[' + b"{}," * 10_000 + b"{}]}")


def test_a_large_message_of_few_elements_is_accepted() -> None:
    nested = b"\x0a" + length(1_500_000) + (b"\x22" + length(1_499_996) + b"," * 1_499_996)
    for data in (
        b"\x1a" + length(8 * 100_000) + bytes(8 * 100_000),
        b"\x12" + length(9 * 100_000) + (b"\xff" * 8 + b"\1") * 100_000,
        nested,
    ):
        tree()["BINARY"](data)
    tree()["JSON"](b'{"text":"' + b",[{" * 500_000 + b'"}')


PROTO2 = 'syntax = "proto2"; message M { required int32 id = 1; optional M next = 2; }'


def test_the_compiler_gets_nothing_of_pushhub_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUSHHUB_SECRET_KEY", "only-for-this-test")
    run = Mock(side_effect=subprocess.run)
    monkeypatch.setattr(protobuf.subprocess, "run", run)

    assert compile_definition("PROTOCOL_BUFFER", PROTO2).compiled

    assert [*run.call_args.kwargs["env"]] == ["PYTHONPATH"]


def test_a_protocol_buffer_definition_is_refused_with_each_of_its_errors_in_one_line() -> None:
    """Without a syntax, protoc's library logs a warning of several lines before them."""
    with pytest.raises(InvalidArgument) as refused:
        compile_definition("PROTOCOL_BUFFER", "message M { optional strin a = 1; optional nope b = 2; }")
    said = str(refused.value)
    assert said.endswith(
        'invalid: schema.proto:1:22: "strin" is not defined.; schema.proto:1:44: "nope" is not defined.'
    )


def test_a_protocol_buffer_message_needs_its_required_fields() -> None:
    checks = compile_definition("PROTOCOL_BUFFER", PROTO2).validators()
    checks["BINARY"](b"\x08\x01")
    checks["JSON"](b'{"id":1}')
    for encoding, data in (("BINARY", b""), ("JSON", b"{}"), ("JSON", b"[")):
        with pytest.raises(Mismatch):
            checks[encoding](data)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("JSON", b'{"id":1,"more":2}'),
        ("BINARY", b"\x08\x01\x18\x02"),
        ("BINARY, in a message", b"\x08\x01\x12\x04\x08\x01\x18\x02"),
    ],
)
def test_a_protocol_buffer_message_has_no_fields_beyond_the_definition(encoding: str, data: bytes) -> None:
    """Production refuses them, so that the revision that a message is said to match has all of its fields."""
    checks = compile_definition("PROTOCOL_BUFFER", PROTO2).validators()
    with pytest.raises(Mismatch):
        checks[encoding.partition(",")[0]](data)


def test_a_protocol_buffer_message_that_nests_for_ever_is_refused() -> None:
    checks = compile_definition("PROTOCOL_BUFFER", PROTO2).validators()
    with pytest.raises(Mismatch):
        checks["JSON"](b'{"id":1,"next":' * 500 + b'{"id":1}' + b"}" * 500)
    for nested, levels in ((b"\x08\x01", 300), (b"\x0a" + length(300_000) + bytes(300_000), 2000)):
        for _ in range(levels):
            nested = b"\x08\x01\x12" + length(len(nested)) + nested
        with pytest.raises(Mismatch):
            checks["BINARY"](nested)
