"""`python -m tests.descriptors` writes the client library's descriptors of google.pubsub.v1 into the package."""

from __future__ import annotations

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.pubsub_v1.types import pubsub

from pushhub.common.pubsubtypes import DESCRIPTORS


def describe_pubsub() -> bytes:
    """Return the FileDescriptorSet of the client library's messages, with each file after those that it imports."""
    files: dict[str, FileDescriptorProto] = {}

    def add(file: FileDescriptor) -> None:
        for imported in file.dependencies:
            add(imported)
        files[file.name] = FileDescriptorProto.FromString(file.serialized_pb)

    add(pubsub.Topic.pb().DESCRIPTOR.file)
    return FileDescriptorSet(file=files.values()).SerializeToString(deterministic=True)


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(describe_pubsub())
