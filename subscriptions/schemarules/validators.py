"""Validation of definitions and messages, whatever the language of the schema."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pushhub.common.errors import InvalidArgument
from subscriptions.schemarules.avro import avro_parse, invalid_definition
from subscriptions.schemarules.avrobinary import Mismatch, binary_check
from subscriptions.schemarules.avrojson import json_check
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES
from subscriptions.schemarules.protobuf import (
    compiled_check,
    message_class,
    proto_binary_check,
    proto_compile,
    proto_json_check,
    root_message_class,
)

AVRO = "AVRO"
PROTOCOL_BUFFER = "PROTOCOL_BUFFER"
#: Raises Mismatch for data in one of the encodings that doesn't match the schema.
Validator = Callable[[bytes], None]


def definition_compile(kind: str, definition: str) -> bytes:
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
        return proto_compile(definition)
    avro_parse(definition)
    return b""


def validators(kind: str, definition: str, compiled: bytes, *, root_message: str = "") -> dict[str, Validator]:
    """Return the validator of each encoding. With a root message, `compiled` is a FileDescriptorSet."""
    if kind == PROTOCOL_BUFFER:
        message = root_message_class(compiled, root_message) if root_message else message_class(compiled)
        return {"BINARY": partial(proto_binary_check, message), "JSON": partial(proto_json_check, message)}
    schema = avro_parse(definition)
    return {"BINARY": partial(binary_check, schema), "JSON": partial(json_check, schema)}


__all__ = ["AVRO", "PROTOCOL_BUFFER", "Mismatch", "Validator", "compiled_check", "definition_compile", "validators"]
