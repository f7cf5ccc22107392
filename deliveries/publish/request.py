"""Reads a publish request: its shape by docs/spec.md#json-form, its limits by docs/spec-messages.md#publish."""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings

from deliveries.rules.payload import NewMessage
from pushhub.common.environment import REGION_PATTERN
from pushhub.common.errors import FailedPrecondition, InvalidArgument, clipped
from pushhub.common.protojson import Kind, Message, Repeated, String, StringMap, parse_bytes

MAX_MESSAGES = 1000
#: Of the request in its binary form, as gRPC brings it; the JSON body has its own limit at the parser.
MAX_REQUEST_BYTES = 10_000_000
MAX_ORDERING_KEY_BYTES = 1024
MAX_ATTRIBUTES = 100
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 1024
RESERVED_PREFIX = "goog"
#: Attributes that Google's own clients set, such as the trace context of OpenTelemetry.
CLIENT_PREFIX = "googclient_"


class Bytes(Kind):
    """Base64 text, read as bytes."""

    type_name = "TYPE_BYTES"

    def read(self, value: object, path: str) -> bytes:
        return parse_bytes(value, field=path)


ATTRIBUTES = StringMap(
    max_entries=MAX_ATTRIBUTES,
    max_key_bytes=MAX_KEY_BYTES,
    max_value_bytes=MAX_VALUE_BYTES,
    values_take_nul=True,
)
NO_ATTRIBUTES: dict[str, str] = {}
#: The fields of a message in its usual form.
PLAIN_FIELDS = frozenset({"data", "attributes"})
PUBSUB_MESSAGE = Message(
    "PubsubMessage",
    {
        "data": Bytes(),
        "attributes": ATTRIBUTES,
        "messageId": String(),
        "publishTime": String(),
        "orderingKey": String(MAX_ORDERING_KEY_BYTES),
    },
    # What a client says of these is ignored, as production does.
    output_only=frozenset({"messageId", "publishTime"}),
)
#: One more than allowed may be read, so that the count has production's own error text.
PUBLISH_REQUEST = Message("PublishRequest", {"messages": Repeated(PUBSUB_MESSAGE, max_items=100_000)})
PUBLISH_RESPONSE = Message("PublishResponse", {"messageIds": Repeated(String(), max_items=MAX_MESSAGES)})


def parse_publish_request(body: object) -> list[NewMessage]:
    """Return the messages of a request. Raises InvalidArgument, which names the field, or FailedPrecondition."""
    if isinstance(body, Mapping) and isinstance(listed := body.get("messages"), list):
        _check_count(len(listed))
        plain = _plain_messages(listed) if len(body) == 1 else None
        if plain is not None:
            return _checked(plain)
    items = PUBLISH_REQUEST.read(body).get("messages", [])
    return _checked(
        NewMessage(item.get("data", b""), item.get("attributes", {}), item.get("orderingKey", "")) for item in items
    )


def _plain_messages(items: Iterable[object]) -> list[NewMessage] | None:
    """Read messages in their usual form, in a third of the time; return None if any of them has another form."""
    messages = []
    for item in items:
        if type(item) is not dict or not item.keys() <= PLAIN_FIELDS:
            return None
        data, attributes = item.get("data", ""), item.get("attributes", NO_ATTRIBUTES)
        if type(data) is not str or type(attributes) is not dict:
            return None
        if len(attributes) > MAX_ATTRIBUTES or not ATTRIBUTES.is_plain(attributes):
            return None
        try:
            messages.append(NewMessage(binascii.a2b_base64(data, strict_mode=True), attributes))
        except ValueError:
            return None  # base64 has other forms as well
    return messages


def read_published_messages(messages: Sequence[Any]) -> list[NewMessage]:
    """Check messages that came in binary form: as PubsubMessages, whose lengths alone are left to be checked.

    Raises the same errors.
    """
    _check_count(len(messages))
    keys = PUBSUB_MESSAGE.fields["orderingKey"]
    return _checked(
        NewMessage(
            message.data,
            ATTRIBUTES.read(dict(message.attributes), f"messages[{index}].attributes") if message.attributes else {},
            keys.read(message.ordering_key, f"messages[{index}].orderingKey") if message.ordering_key else "",
        )
        for index, message in enumerate(messages)
    )


def check_transformed_messages(messages: Sequence[NewMessage]) -> None:
    """Check messages that came out of message transforms, as if a publisher had sent them; raises the same errors."""
    attributes = PUBSUB_MESSAGE.fields["attributes"]
    for index, message in enumerate(messages):
        attributes.read(message.attributes, f"messages[{index}].attributes")
    _checked(messages)


def _checked(messages: Iterable[NewMessage]) -> list[NewMessage]:
    checked = [_message(message, index) for index, message in enumerate(messages)]
    if not checked:
        raise _count_error(0, "small", "minimum value is 1")
    _check_size(checked)
    _check_ordering_keys(checked)
    return checked


def parse_region(text: str) -> str:
    """Return a region's name, or "" for the deployment's own. Raises InvalidArgument for a region without workers."""
    if text and not REGION_PATTERN.fullmatch(text):
        raise InvalidArgument(
            f"Invalid region given (region={clipped(text)}). A region has up to 63 lower-case letters, digits and "
            "hyphens, and begins with a letter.",
            field="region",
        )
    if text and text not in settings.REGIONS:
        raise InvalidArgument(
            f"Unknown region given (region={text}). Regions are {', '.join(settings.REGIONS)}.", field="region"
        )
    return text


def _check_count(count: int) -> None:
    if count > MAX_MESSAGES:
        raise _count_error(count, "large", f"maximum value is {MAX_MESSAGES}")


def _count_error(count: int, word: str, bound: str) -> InvalidArgument:
    return InvalidArgument(
        f"The value for message_count is too {word}. You passed {count} in the request, but the {bound}.",
        field="messages",
    )


def _message(message: NewMessage, index: int) -> NewMessage:
    if not message.data and not message.attributes:
        raise InvalidArgument(
            "One or more messages in the publish request is empty. "
            f"Each message must contain either non-empty data, or at least one attribute (messages[{index}]).",
            field=f"messages[{index}].data",
        )
    for key in message.attributes:
        if not key or (key[:4].lower() == RESERVED_PREFIX and not key.startswith(CLIENT_PREFIX)):
            raise InvalidArgument(
                f"Invalid attribute key given (messages[{index}].attributes, key={clipped(key)!r}). "
                "A key must not be empty or start with 'goog', except for 'googclient_'.",
                field=f"messages[{index}].attributes",
            )
    return message


def encoded_bytes(message: NewMessage) -> int:
    """Return how long a PubsubMessage is in a PublishRequest in binary form, its tag and its length included."""
    size = sum(
        _field_bytes(_field_bytes(_length(key)) + _field_bytes(_length(value)))
        for key, value in message.attributes.items()
    )
    for length in (len(message.data), _length(message.ordering_key)):
        size += _field_bytes(length) if length else 0
    return _field_bytes(size)


def _most_bytes(message: NewMessage) -> int:
    """Return a bound of `encoded_bytes`: a character has up to 4 bytes, a tag and a length up to 6."""
    size = len(message.data) + 4 * len(message.ordering_key) + 18
    if message.attributes:
        size += sum(4 * (len(key) + len(value)) + 18 for key, value in message.attributes.items())
    return size


def _field_bytes(length: int) -> int:
    """The tag, the length as a varint, and the content of a field whose number is below 16."""
    return 1 + max((length.bit_length() + 6) // 7, 1) + length


def _length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_size(messages: list[NewMessage]) -> None:
    # Nearly every request is far below the limit, which this tells in a fraction of the time.
    if sum(map(_most_bytes, messages)) <= MAX_REQUEST_BYTES:
        return
    size = sum(map(encoded_bytes, messages))
    if size > MAX_REQUEST_BYTES:
        raise InvalidArgument(
            f"The value for request_size is too large. You passed {size} in the request, "
            f"but the maximum value is {MAX_REQUEST_BYTES}.",
            field="messages",
        )


def _check_ordering_keys(messages: list[NewMessage]) -> None:
    if len({message.ordering_key for message in messages}) > 1:
        raise FailedPrecondition(
            "In a single publish request, all messages must have no ordering key or they must all have the "
            "same ordering key.",
            field="messages.orderingKey",
        )
