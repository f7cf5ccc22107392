"""Validation of definitions and messages, whatever the language of the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from google.protobuf.message import Message

from pushhub.common.errors import InvalidArgument
from subscriptions.schemarules.avro import AvroSchema, invalid_definition, parse_avro
from subscriptions.schemarules.avrobinary import check_binary
from subscriptions.schemarules.avrojson import check_json
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES
from subscriptions.schemarules.protobuf import (
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


@dataclass(frozen=True, slots=True)
class Definition:
    """A valid definition: its text, and its compiled form, which parses messages and is empty for Avro.

    With a root message, the caller sent the compiled form, a FileDescriptorSet, and no text.
    """

    type: str
    text: str
    compiled: bytes
    root_message: str = ""

    def parsed(self) -> Parsed:
        """Return what messages are checked with."""
        if self.type != PROTOCOL_BUFFER:
            return parse_avro(self.text)
        return (
            root_message_class(self.compiled, self.root_message) if self.root_message else message_class(self.compiled)
        )

    def validators(self) -> dict[str, Validator]:
        """Return the validator of each encoding."""
        schema = self.parsed()
        if isinstance(schema, AvroSchema):
            return {"BINARY": partial(check_binary, schema), "JSON": partial(check_json, schema)}
        read_json = partial(check_proto_json, schema, widest=widest_type(schema))
        return {"BINARY": partial(check_proto_binary, schema, known={}), "JSON": read_json}


def compile_definition(kind: str, text: str) -> Definition:
    """Return the definition of a text; InvalidArgument unless it is valid."""
    if not text:
        raise invalid_definition("it is empty.")
    size = len(text.encode())
    if size > MAX_DEFINITION_BYTES:
        raise InvalidArgument(
            f"The value for schema definition size is too large. You passed {size} in the request, "
            f"but the maximum value is {MAX_DEFINITION_BYTES}.",
            field="schema.definition",
        )
    if kind == PROTOCOL_BUFFER:
        return Definition(kind, text, compile_proto(text))
    parse_avro(text)
    return Definition(kind, text, b"")
