"""Descriptors of our services for server reflection. Those of google.pubsub.v1 describe messages only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from pushhub.common.pubsubtypes import POOL, add_file
from subscriptions.rpc.calls import Bidirectional, Method


def reflected_pool(services: Mapping[str, Mapping[str, Method]], *, described: Iterable[Any]) -> DescriptorPool:
    """Return the pool of the messages, with a file for each service.

    `described` has the FileDescriptors of the services that protoc has described.
    """
    for file in described:
        add_file(file)
    for name, methods in services.items():
        try:
            POOL.FindServiceByName(name)
        except KeyError:
            POOL.AddSerializedFile(_file_of(name, methods).SerializeToString())
    return POOL


def _file_of(service: str, methods: Mapping[str, Method]) -> descriptor_pb2.FileDescriptorProto:
    package, _, name = service.rpartition(".")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"pushhub/{service.replace('.', '/').lower()}.proto", package=package, syntax="proto3"
    )
    described = file.service.add(name=name)
    files = set()
    for method_name, method in methods.items():
        described.method.add(
            name=method_name,
            input_type=f".{method.request.DESCRIPTOR.full_name}",
            output_type=f".{method.answer.DESCRIPTOR.full_name}",
            client_streaming=isinstance(method, Bidirectional),
            server_streaming=isinstance(method, Bidirectional),
        )
        for message in (method.request, method.answer):
            add_file(message.DESCRIPTOR.file)
            files.add(message.DESCRIPTOR.file.name)
    file.dependency.extend(sorted(files))
    return file
