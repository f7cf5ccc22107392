"""Conversion between gRPC's messages and the proto JSON that the services use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from pushhub.common.errors import InvalidArgument

M = TypeVar("M", bound=Message)


def parsed(kind: type[M], data: bytes) -> M:
    """Parse a message; InvalidArgument if the bytes are malformed."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidArgument(f"The request is not a valid {kind.DESCRIPTOR.full_name} message.") from None


def to_dict(message: Message) -> dict[str, Any]:
    """Return a message in proto JSON, as a REST request would have it."""
    try:
        return json_format.MessageToDict(message)
    except (json_format.Error, ValueError) as error:  # a Duration or Timestamp that JSON can't represent
        raise InvalidArgument(f"Invalid value in {message.DESCRIPTOR.name}: {error}") from None


def to_message(resource: Mapping[str, Any], kind: type[M]) -> M:
    """Return a resource as Google's message, which lacks the fields of PushHub's own that REST shows."""
    return json_format.ParseDict(dict(resource), kind(), ignore_unknown_fields=True)
