"""Field tables of the API's messages, derived from the descriptors of the protocol buffers that Google publishes.

A descriptor has the names and types of the fields. It doesn't say how large a value may be, nor which fields callers
can't set. These rules of PushHub are passed in, keyed by the field's JSON name, or by that and the message's name, for
example `PushConfig.OidcToken.audience`.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from pushhub.common import protojson

WELL_KNOWN: Mapping[str, protojson.Kind] = {
    "google.protobuf.Duration": protojson.Duration(),
    "google.protobuf.FieldMask": protojson.String(),
    "google.protobuf.Struct": protojson.Struct(),
    "google.protobuf.Timestamp": protojson.Timestamp(),
}
SCALARS: Mapping[int, protojson.Kind] = {
    FieldDescriptor.TYPE_BOOL: protojson.Bool(),
    FieldDescriptor.TYPE_BYTES: protojson.String(),
    FieldDescriptor.TYPE_INT32: protojson.Integer(32),
    FieldDescriptor.TYPE_INT64: protojson.Integer(64),
    FieldDescriptor.TYPE_STRING: protojson.String(),
}

NO_KINDS: Mapping[str, protojson.Kind] = {}


def message_of(
    descriptor: Descriptor, *, kinds: Mapping[str, protojson.Kind] = NO_KINDS, output_only: Set[str] = frozenset()
) -> protojson.Message:
    """Return the field table of a message and of every message in it. `kinds` replaces the derived type of a field."""
    name = descriptor.full_name.removeprefix(descriptor.file.package).removeprefix(".")
    return protojson.Message(
        descriptor.name,
        {
            field.json_name: kinds.get(f"{name}.{field.json_name}")
            or _kind_of(field, kinds=kinds, output_only=output_only)
            for field in descriptor.fields
        },
        output_only=frozenset(
            field.json_name
            for field in descriptor.fields
            if not output_only.isdisjoint((field.json_name, f"{name}.{field.json_name}"))
        ),
        oneofs={
            oneof.name: tuple(field.json_name for field in oneof.fields)
            for oneof in descriptor.oneofs
            if len(oneof.fields) > 1
        },
    )


def _kind_of(field: FieldDescriptor, *, kinds: Mapping[str, protojson.Kind], output_only: Set[str]) -> protojson.Kind:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return kinds.get(field.json_name) or protojson.StringMap()
    if message is not None:
        kind = WELL_KNOWN.get(message.full_name) or message_of(message, kinds=kinds, output_only=output_only)
    elif field.enum_type is not None:
        kind = _enum_of(field.enum_type)
    else:
        kind = kinds.get(field.json_name) or SCALARS[field.type]
    return protojson.Repeated(kind) if field.is_repeated else kind


def _enum_of(descriptor: EnumDescriptor) -> protojson.Enum:
    values = sorted(descriptor.values, key=lambda value: value.number)
    return protojson.Enum(*(value.name for value in values), numbers=[value.number for value in values])
