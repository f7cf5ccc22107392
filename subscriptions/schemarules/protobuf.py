"""Protocol Buffer definitions: protoc compiles them when they are committed, and the result parses messages.

protoc runs as a process of its own with bounds on its time and memory, as definitions come from anybody. A caller may
also send what protoc makes of a definition, with its imports.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from pushhub.common.elements import has_few_elements
from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.wire import Known, check_fields
from subscriptions.schemarules.avro import invalid_definition, require_extra
from subscriptions.schemarules.avrobinary import Mismatch, too_many_elements
from subscriptions.schemarules.limits import MAX_DEFINITION_BYTES, MAX_VALUE_DEPTH

FILE = "schema.proto"
COMPILE_SECONDS = 20
COMPILE_MEMORY_BYTES = 1 << 30
#: Runs in an interpreter without PushHub's modules: it limits itself and becomes protoc.
COMPILER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({COMPILE_MEMORY_BYTES},) * 2)
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""
#: The files that any definition may import, as this program's library has them: it knows their types by name and reads
#: their JSON in ways of their own, so that another definition of them would break it.
WELL_KNOWN: dict[str, bytes] = {
    f"google/protobuf/{name}.proto": import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.serialized_pb
    for name in ("any", "descriptor", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
}
WELL_KNOWN_PACKAGE = "google.protobuf"
#: How many objects of JSON, times the fields of the widest type, a message may have: protobuf's parser goes through the
#: fields of a type for each object, 3 million in a second.
MOST_LOOKS = 10_000_000


def compile_proto(definition: str) -> bytes:
    """Return a serialized FileDescriptorProto; InvalidArgument unless it compiles and has one message at its top.

    Nothing can be imported, as in production: the folder in which it is compiled has no other file. An installation
    without the extra `schemas` has no compiler, and raises FailedPrecondition.
    """
    require_extra("grpc_tools", "compiler of Protocol Buffers")
    with tempfile.TemporaryDirectory(prefix="pushhub-schema-") as folder:
        Path(folder, FILE).write_text(definition, encoding="utf-8")
        arguments = [f"--proto_path={folder}", "--descriptor_set_out=compiled", FILE]
        try:
            done = subprocess.run(  # noqa: S603 - a fixed command; the definition is in a file
                [sys.executable, "-c", COMPILER, *arguments],
                cwd=folder,
                env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # and nothing of PushHub's, as secrets
                capture_output=True,
                timeout=COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise invalid_definition("it takes too long to compile.") from None
        if done.returncode:
            raise invalid_definition(_reasons(done.stderr.decode(errors="replace").replace(f"{folder}/", "")))
        return _only_file(Path(folder, "compiled").read_bytes())


def _reasons(stderr: str) -> str:
    """Return protoc's errors in one line, without what its libraries log in between."""
    errors = re.findall(r"^\S+\.proto:.*", stderr, re.MULTILINE)
    return "; ".join(errors) or " ".join(stderr.split())


def _only_file(descriptor_set: bytes) -> bytes:
    [file] = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    if len(file.message_type) != 1:
        raise invalid_definition(
            f"a definition must have exactly one message at its top, and this has {len(file.message_type)}."
        )
    return file.SerializeToString()


def check_compiled(descriptor_set: bytes, root_message: str) -> None:
    """Raise InvalidArgument unless a FileDescriptorSet defines its root message and everything that this refers to."""
    if not descriptor_set:
        raise _invalid_compiled("it is empty.")
    if len(descriptor_set) > MAX_DEFINITION_BYTES:
        raise _invalid_compiled(f"it has {len(descriptor_set)} bytes, and the maximum is {MAX_DEFINITION_BYTES}.")
    if not root_message:
        raise InvalidArgument(
            "The name of the root message is missing.", field="schema.compiledProtoSchema.rootMessage"
        )
    root_message_class(descriptor_set, root_message)


def root_message_class(descriptor_set: bytes, root_message: str) -> type[Message]:
    """Return the class of a message of a FileDescriptorSet by its full name; InvalidArgument if there is none."""
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    except DecodeError:
        raise _invalid_compiled("it is not a FileDescriptorSet.") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in _imports_first(files):
            pool.AddSerializedFile(file)
    except (TypeError, ValueError) as error:
        raise _invalid_compiled(str(error)) from None
    try:
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(root_message))
    except KeyError:
        raise InvalidArgument(
            f"The compiled definition has no message {clipped(root_message)}. Give its full name, with its package.",
            field="schema.compiledProtoSchema.rootMessage",
        ) from None


def _imports_first(files: Iterable[descriptor_pb2.FileDescriptorProto]) -> Iterable[bytes]:
    """Return the files in serialized form, each after those that it imports, with the library's well-known ones."""
    by_name = {file.name: file for file in files if file.name not in WELL_KNOWN}
    for file in by_name.values():
        if f"{file.package}.".startswith(f"{WELL_KNOWN_PACKAGE}."):
            raise _invalid_compiled(f"the package {WELL_KNOWN_PACKAGE} is reserved.")
    try:
        ordered = [*TopologicalSorter({file.name: file.dependency for file in by_name.values()}).static_order()]
    except CycleError:
        raise _invalid_compiled("its files import each other.") from None
    return [*WELL_KNOWN.values(), *(by_name[name].SerializeToString() for name in ordered if name in by_name)]


def _invalid_compiled(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"Schema definition is invalid: {clipped(why)}", field="schema.compiledProtoSchema.compiledBytes"
    )


def message_class(compiled: bytes) -> type[Message]:
    """Return the class of the definition's message."""
    file = descriptor_pb2.FileDescriptorProto.FromString(compiled)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = file.message_type[0].name
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{name}" if file.package else name)
    )


def widest_type(kind: type[Message]) -> int:
    """Return the number of fields of the widest type that a message may hold."""
    types, left = {}, [kind.DESCRIPTOR]
    while left:
        found = left.pop()
        if found.full_name not in types:
            types[found.full_name] = len(found.fields)
            left += [field.message_type for field in found.fields if field.message_type is not None]
    return max(types.values())


def check_proto_binary(kind: type[Message], data: bytes, *, known: Known) -> None:
    """Raise Mismatch unless `data` is the binary form of a message without unknown fields."""
    try:
        check_fields(kind, data, known=known, small_bytes=0)
    except InvalidArgument:
        raise too_many_elements() from None
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise Mismatch(f"The message is not a valid {kind.DESCRIPTOR.full_name}: {error}") from None
    _check_required(message)
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise Mismatch(f"The message has fields that {kind.DESCRIPTOR.full_name} lacks.")


def check_proto_json(kind: type[Message], data: bytes, *, widest: int) -> None:
    """Raise Mismatch unless `data` is the JSON of a message without unknown fields. `widest` is `widest_type(kind)`."""
    if not has_few_elements(data):
        raise too_many_elements()
    if data.count(b"{") * widest > MOST_LOOKS:
        raise Mismatch(f"The message has too many objects for types of up to {widest} fields.")
    message = kind()
    try:
        json_format.Parse(data, message, max_recursion_depth=MAX_VALUE_DEPTH)
    except (json_format.Error, ValueError, RecursionError) as error:
        raise Mismatch(f"The message is not a valid {kind.DESCRIPTOR.full_name}: {clipped(str(error))}") from None
    _check_required(message)


def _check_required(message: Message) -> None:
    """Check the required fields, which the parsers don't do."""
    missing = message.FindInitializationErrors()  # type: ignore[attr-defined]
    if missing:
        raise Mismatch(f"The message lacks the required fields {clipped(', '.join(missing))}.")
