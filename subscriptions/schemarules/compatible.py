"""Whether a new revision of a schema is compatible with an older one (docs/spec-messages.md#schema-methods)."""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from subscriptions.schemarules.avro import AvroSchema, Part
from subscriptions.schemarules.validators import Parsed

#: What a value of each type can also be read as (Avro's specification, "Schema Resolution").
PROMOTIONS = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
NAMED = ("record", "error", "enum", "fixed")
#: The most parts that are compared, so that two large definitions don't keep a thread for minutes.
MOST_PARTS = 50_000
TOO_LARGE = "the definitions are too large to be compared"


def fault_between(new: Parsed, old: Parsed) -> str:
    """Return why two definitions of a schema are incompatible, or "".

    Each of two Avro schemas has to read what the other has written, as in production.
    """
    if not isinstance(new, AvroSchema) and not isinstance(old, AvroSchema):
        return _proto_fault(new.DESCRIPTOR, old.DESCRIPTOR)  # type: ignore[arg-type] # the C form of the same class
    assert isinstance(new, AvroSchema) and isinstance(old, AvroSchema)
    try:
        return _Reading(new, old).fault(new.root, old.root) or _Reading(old, new).fault(old.root, new.root)
    except RecursionError:
        return TOO_LARGE


class _Reading:
    """Compares the parts of a reader's schema with those of a writer's."""

    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self.reader = reader
        self.writer = writer
        self.left = MOST_PARTS
        self.known: dict[tuple[int, int], str] = {}

    def fault(self, reader: Part, writer: Part) -> str:
        """Return why the reader can't read what the writer has written, or ""."""
        reader, writer = self.reader.resolved(reader), self.writer.resolved(writer)
        self.left -= 1
        if self.left < 0:
            raise RecursionError
        if isinstance(writer, list):
            return next(filter(None, (self.fault(reader, branch) for branch in writer)), "")
        if isinstance(reader, list):
            fits = any(not self.fault(branch, writer) for branch in reader)
            return "" if fits else f"the type {_text(writer)} is missing in a union"
        if isinstance(reader, str) or isinstance(writer, str):
            both = isinstance(reader, str) and isinstance(writer, str)
            fits = both and (reader == writer or reader in PROMOTIONS.get(writer, ()))
            return "" if fits else f"the type {_text(writer)} can't be read as {_text(reader)}"
        pair = id(reader), id(writer)
        if pair not in self.known:
            self.known[pair] = ""  # while it is being compared, as it may contain itself
            self.known[pair] = self._complex_fault(reader, writer)
        return self.known[pair]

    def _complex_fault(self, reader: Part, writer: Part) -> str:
        kind = reader["type"]
        if kind != writer["type"] or (kind in NAMED and _short_name(reader) != _short_name(writer)):
            return f"the type {_text(writer)} can't be read as {_text(reader)}"
        if kind in ("array", "map"):
            inside = "items" if kind == "array" else "values"
            return self.fault(reader[inside], writer[inside])
        if kind == "fixed":
            return "" if reader["size"] == writer["size"] else f"the size of {_text(reader)} differs"
        if kind == "enum":
            missing = set(writer["symbols"]) - set(reader["symbols"])
            return f"{min(missing)} is missing in {_text(reader)}" if missing and "default" not in reader else ""
        written = {field["name"]: field["type"] for field in writer["fields"]}
        for field in reader["fields"]:
            if field["name"] in written:
                fault = self.fault(field["type"], written[field["name"]])
            else:
                fault = "" if "default" in field else "a field that not every revision has needs a default"
            if fault:
                return f"{_text(reader)}.{field['name']}: {fault}"
        return ""


def _short_name(part: Part) -> str:
    return str(part["name"]).rpartition(".")[2]


def _text(part: Part) -> str:
    return part if isinstance(part, str) else str(part.get("name", part["type"]))


def _proto_fault(new: Descriptor, old: Descriptor) -> str:
    """Return which change of a message is more than a new or a missing optional field, or ""."""
    pairs = [(new, old)]
    seen = set(pairs)
    left = MOST_PARTS
    while pairs:
        new, old = pairs.pop()
        left -= len(new.fields) + len(old.fields)
        if left < 0:
            return TOO_LARGE
        for field, other in [*((field, old) for field in new.fields), *((field, new) for field in old.fields)]:
            same = other.fields_by_number.get(field.number) or other.fields_by_name.get(field.name)
            fault = _field_fault(field, same)
            if fault:
                return fault
            if same is not None and field.message_type is not None and same.message_type is not None and other is old:
                inside = field.message_type, same.message_type
                pairs.extend({inside} - seen)
                seen.add(inside)
    return ""


def _field_fault(field: FieldDescriptor, same: FieldDescriptor | None) -> str:
    if same is None:
        return f"{field.full_name} is required, and not every revision has it" if field.is_required else ""
    if (field.number, field.name, _type_text(field)) != (same.number, same.name, _type_text(same)):
        return f"{_field_text(field)} is not compatible with {_field_text(same)}"
    if field.enum_type is None or same.enum_type is None:
        return ""
    numbers = {value.name: value.number for value in same.enum_type.values}
    missing = (value for value in field.enum_type.values if numbers.get(value.name) != value.number)
    return next((f"{value.name} = {value.number} is missing in {same.enum_type.full_name}" for value in missing), "")


def _field_text(field: FieldDescriptor) -> str:
    return f"{field.full_name} = {field.number} of type {_type_text(field)}"


def _type_text(field: FieldDescriptor) -> str:
    label = "repeated " if field.is_repeated else "required " if field.is_required else ""
    return (
        label
        + FieldDescriptorProto.Type.Name(FieldDescriptorProto.Type.ValueType(field.type)).removeprefix("TYPE_").lower()
    )
