"""Validation of definitions and messages, whatever the language of the schema."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from google.protobuf.message import Message

from pushhub.common.errors import InvalidArgument
from subscriptions.schemarules.avro import AvroSchema, invalid_definition, parse_avro
from subscriptions.schemarules.avrobinary import Mismatch, check_binary
from subscriptions.schemarules.avrojson import check_json
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES
from subscriptions.schemarules.protobuf import (
    check_compiled,
    check_proto_binary,
    check_proto_json,
    compile_proto,
    message_class,
    root_message_class,
    widest_type,
)

AVRO = "AVRO"
PROTOCOL_BUFFER = "PROTOCOL_BUFFER"
#: Raises Mismatch for data in one of the encodings that doesn't match the schema.
Validator = Callable[[bytes], None]
#: A definition in the form that its language's checks need.
Parsed = AvroSchema | type[Message]


def compile_definition(kind: str, definition: str) -> bytes:
    """Return the compiled form that parses messages of a valid definition; else InvalidArgument."""
    if not definition:
        raise invalid_definition("it is empty.")
    size = len(definition.encode())
    if size > MAX_DEFINITION_BYTES:
        raise InvalidArgument(
            f"The value for schema definition size is too large. You passed {size} in the request, "
            f"but the maximum value is {MAX_DEFINITION_BYTES}.",
            field="schema.definition",
        )
    if kind == PROTOCOL_BUFFER:
        return compile_proto(definition)
    parse_avro(definition)
    return b""


def parse_definition(kind: str, definition: str, compiled: bytes, *, root_message: str = "") -> Parsed:
    """Return what messages are checked with. With a root message, `compiled` is a FileDescriptorSet."""
    if kind == PROTOCOL_BUFFER:
        return root_message_class(compiled, root_message) if root_message else message_class(compiled)
    return parse_avro(definition)


def validators(kind: str, definition: str, compiled: bytes, *, root_message: str = "") -> dict[str, Validator]:
    """Return the validator of each encoding."""
    schema = parse_definition(kind, definition, compiled, root_message=root_message)
    if isinstance(schema, AvroSchema):
        return {"BINARY": partial(check_binary, schema), "JSON": partial(check_json, schema)}
    read_json = partial(check_proto_json, schema, widest=widest_type(schema))
    return {"BINARY": partial(check_proto_binary, schema, known={}), "JSON": read_json}


__all__ = [
    "AVRO",
    "PROTOCOL_BUFFER",
    "Mismatch",
    "Parsed",
    "Validator",
    "check_compiled",
    "compile_definition",
    "parse_definition",
    "validators",
]
