"""Protocol Buffer definitions: protoc compiles them when they are committed, and the result parses messages.

protoc runs as a process of its own with bounds on its time and memory, as definitions come from anybody.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError, Message

from pushhub.common.errors import clipped
from subscriptions.schemarules.avro import invalid_definition
from subscriptions.schemarules.avrobinary import Mismatch
from subscriptions.schemarules.limits import MAX_VALUE_DEPTH

FILE = "schema.proto"
COMPILE_SECONDS = 20
COMPILE_MEMORY_BYTES = 1 << 30
#: Runs in an interpreter without our modules: it limits itself and becomes protoc.
COMPILER = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({COMPILE_MEMORY_BYTES},) * 2)
from grpc_tools import protoc
sys.exit(protoc.main(sys.argv))
"""


def proto_compile(definition: str) -> bytes:
    """Return a serialized FileDescriptorProto; InvalidArgument unless it compiles and has one message at its top.

    Nothing can be imported, as in production: the folder in which it is compiled has no other file.
    """
    with tempfile.TemporaryDirectory(prefix="pushhub-schema-") as folder:
        Path(folder, FILE).write_text(definition, encoding="utf-8")
        arguments = [f"--proto_path={folder}", "--descriptor_set_out=compiled", FILE]
        try:
            done = subprocess.run(  # noqa: S603 - a fixed command; the definition is in a file
                [sys.executable, "-c", COMPILER, *arguments],
                cwd=folder,
                capture_output=True,
                timeout=COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise invalid_definition("it takes too long to compile.") from None
        if done.returncode:
            raise invalid_definition(done.stderr.decode(errors="replace").replace(f"{folder}/", "").strip())
        return _only_file(Path(folder, "compiled").read_bytes())


def _only_file(descriptor_set: bytes) -> bytes:
    [file] = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    if len(file.message_type) != 1:
        raise invalid_definition(
            f"a definition must have exactly one message at its top, and this has {len(file.message_type)}."
        )
    return file.SerializeToString()


def message_class(compiled: bytes) -> type[Message]:
    """Return the class of the definition's message."""
    file = descriptor_pb2.FileDescriptorProto.FromString(compiled)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = file.message_type[0].name
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName(f"{file.package}.{name}" if file.package else name)
    )


def proto_binary_check(kind: type[Message], data: bytes) -> None:
    """Raise Mismatch unless `data` is the binary form of a message. It may have fields that the definition lacks."""
    try:
        message = kind.FromString(data)
    except DecodeError as error:
        raise Mismatch(f"The message is not a valid {kind.DESCRIPTOR.full_name}: {error}") from None
    _check_required(message)


def proto_json_check(kind: type[Message], data: bytes) -> None:
    """Raise Mismatch unless `data` is the JSON of a message without unknown fields."""
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
