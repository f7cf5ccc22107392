"""The message classes of google.pubsub.v1, made from descriptors in the package.

The client library has these classes too, but brings a dozen packages that no process of PushHub needs, 13 MB. The
classes here have a pool of their own, so that a program may import the client library's beside them.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool

#: A FileDescriptorSet with all imports. `python -m tests.descriptors` writes it.
DESCRIPTORS = Path(__file__).with_name("pubsub.binpb")

POOL = DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
    POOL.Add(_file)


def add_file(file: Any) -> None:
    """Add a FileDescriptor to the pool, after those that it imports, unless it is there."""
    try:
        POOL.FindFileByName(file.name)
    except KeyError:
        for imported in file.dependencies:
            add_file(imported)
        POOL.AddSerializedFile(file.serialized_pb)


_FILES = [POOL.FindFileByName(f"google/pubsub_v1/types/{name}.proto") for name in ("schema", "pubsub")]
_MESSAGES = {name: message for file in _FILES for name, message in file.message_types_by_name.items()}
#: Every message class of google.pubsub.v1, by the message's name.
pubsub = SimpleNamespace(**{name: message_factory.GetMessageClass(message) for name, message in _MESSAGES.items()})
