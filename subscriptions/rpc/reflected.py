"""Descriptors of our services for server reflection. The client library's classes describe messages only."""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor_pool import DescriptorPool

from subscriptions.rpc.calls import Bidirectional, Method


def reflected_pool(services: Mapping[str, Mapping[str, Method]]) -> DescriptorPool:
    """Return the process's descriptor pool, with a file for each service that it doesn't describe yet."""
    pool = descriptor_pool.Default()
    for name, methods in services.items():
        try:
            pool.FindServiceByName(name)
        except KeyError:
            pool.AddSerializedFile(_file_of(name, methods).SerializeToString())
    return pool


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
        files |= {method.request.DESCRIPTOR.file.name, method.answer.DESCRIPTOR.file.name}
    file.dependency.extend(sorted(files))
    return file
