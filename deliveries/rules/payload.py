"""A message on its way: the `message` object of the push body, without the keys that are doubled in snake_case."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import orjson

from deliveries.rules.ids import publish_time_ms

#: A larger payload stays in the database and the task holds only its id, so that Redis' memory stays bounded.
INLINE_BYTES = 64 * 1024
#: A message that is retried, or waits for an endpoint that is down, is pushed seldom. If it is larger than this, it
#: stays in the database as well.
LEAN_BYTES = 1024


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A publisher's message after all checks."""

    data: bytes
    attributes: Mapping[str, str]
    ordering_key: str = ""

    @property
    def size(self) -> int:
        """Return the bytes of data, attributes and ordering key; each character outside ASCII counts as one."""
        attributes = sum(len(key) + len(value) for key, value in self.attributes.items())
        return len(self.data) + attributes + len(self.ordering_key)

    @property
    def is_large(self) -> bool:
        return len(self.data) > INLINE_BYTES


def publish_time_text(message_id: int) -> str:
    """Return the publish time in RFC 3339 with milliseconds (docs/spec-delivery.md#push-request)."""
    return _time_text(publish_time_ms(message_id))


@lru_cache(maxsize=1024)
def _time_text(time_ms: int) -> str:
    """Format a time. The cache helps because the messages of a page or a request share few milliseconds."""
    seconds, milliseconds = divmod(time_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


def wire_message(
    message_id: int, data: bytes, attributes: Mapping[str, str], ordering_key: str, *, publish_time: str = ""
) -> dict[str, Any]:
    """Return the object that travels in the task; empty fields are absent."""
    wire: dict[str, Any] = {}
    if attributes:
        wire["attributes"] = attributes
    if data:
        wire["data"] = base64.b64encode(data).decode()
    wire["messageId"] = str(message_id)
    if ordering_key:
        wire["orderingKey"] = ordering_key
    wire["publishTime"] = publish_time or publish_time_text(message_id)
    return wire


def wire_size(message: Mapping[str, Any]) -> int:
    """Return the bytes of data, attributes and ordering key of a `wire_message`, as `NewMessage.size` counts them."""
    size = data_size(message) + len(message.get("orderingKey", ""))
    for key, value in message.get("attributes", {}).items():
        size += len(key) + len(value)
    return size


def data_size(message: Mapping[str, Any]) -> int:
    """Return the bytes of the data of a `wire_message`, which holds it in base64."""
    data: str = message.get("data", "")
    return len(data) * 3 // 4 - data.count("=", -2)


def wire_text(message_id: int, data: bytes, attributes: str, ordering_key: str) -> str:
    """Return `wire_message` as JSON text, from attributes in JSON text; this is the fast way for pages of a backlog."""
    parts = []
    if attributes:
        parts.append(f'"attributes":{attributes}')
    if data:
        parts.append(f'"data":"{base64.b64encode(data).decode()}"')
    parts.append(f'"messageId":"{message_id}"')
    if ordering_key:
        parts.append(f'"orderingKey":{orjson.dumps(ordering_key).decode()}')
    parts.append(f'"publishTime":"{publish_time_text(message_id)}"')
    return "{" + ",".join(parts) + "}"


def attributes_text(attributes: Mapping[str, str]) -> str:
    """Return the attributes as the database stores them: a JSON object, or "" for none."""
    return orjson.dumps(attributes).decode() if attributes else ""


def parse_attributes(text: str) -> dict[str, str]:
    parsed: dict[str, str] = orjson.loads(text) if text else {}
    return parsed
