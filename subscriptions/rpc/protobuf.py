"""Between gRPC's messages and the dicts in proto JSON that the services take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import DecodeError, Message

from pushhub.common import protojson
from pushhub.common.errors import InvalidArgument
from subscriptions.resources.masks import mask_of_snake_paths

M = TypeVar("M", bound=Message)


def parsed(kind: type[M], data: bytes) -> M:
    """The message that these bytes stand for; InvalidArgument for what is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise InvalidArgument(f"The request is not a valid {kind.DESCRIPTOR.full_name} message.") from None


def to_dict(message: Message) -> dict[str, Any]:
    """In proto JSON, as REST would have brought it."""
    try:
        return json_format.MessageToDict(message)
    except (json_format.Error, ValueError) as error:  # a Duration or Timestamp that JSON cannot say
        raise InvalidArgument(f"Invalid value in {message.DESCRIPTOR.name}: {error}") from None


def to_message(resource: Mapping[str, Any], kind: type[M]) -> M:
    return json_format.ParseDict(dict(resource), kind())


def update_request(message: Any, field: str, kind: protojson.Message) -> dict[str, Any]:
    """An Update...Request, of which gRPC writes the mask in snake_case, path by path (pubsub-spec.md, section 1.5)."""
    mask = mask_of_snake_paths(message.update_mask.paths, kind)
    return {field: to_dict(getattr(message, field)), "updateMask": mask}
