"""The Celery task message of a delivery, as text: Celery protocol 2 in kombu's Redis form.

Each is a complete message that a stock Celery worker can run. They are built from a template, because Celery's own
`apply_async` costs half a millisecond a message and this costs a few microseconds. The body is not base64, so it can
be read in Redis. The headers' `id` comes first and holds message id, subscription and region, where the Lua scripts
read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

TASK_NAME = "deliveries.deliver"
QUEUE_PREFIX = "deliveries."
#: The parts of a rendered message that `own_parse` goes by.
_HEAD = '{"headers":{"id":"'
_AFTER_IDENTITY = f'","lang":"py","task":"{TASK_NAME}",'
_BODY = '"},"body":"'
_HEAD_BYTES, _AFTER_IDENTITY_BYTES, _BODY_BYTES = _HEAD.encode(), _AFTER_IDENTITY.encode(), _BODY.encode()
EMBED = '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'


class DeliverTask(NamedTuple):
    """What a task message says: the arguments of the task `deliveries.deliver`."""

    subscription_id: int
    region: str
    #: 1 on the first attempt; 1 + nacks and lapses after that.
    attempt: int
    #: The `message` object of the push body without its doubled keys, or only `messageId` when the payload is too
    #: large for Redis and waits in the database.
    message: Mapping[str, Any]

    @property
    def message_id(self) -> int:
        return int(self.message["messageId"])

    @property
    def is_reference(self) -> bool:
        return "publishTime" not in self.message


def queue_name(region: str) -> str:
    return QUEUE_PREFIX + region


def task_id(message_id: int | str, subscription_id: int, region: str) -> str:
    return f"{message_id}.{subscription_id}.{region}"


class TaskTemplate:
    """Task messages for one subscription, region and attempt; only the message differs."""

    __slots__ = ("_after_id", "_after_identity", "_after_message", "_before_message", "_suffix")

    def __init__(self, *, subscription_id: int, region: str, attempt: int) -> None:
        self._suffix = f".{subscription_id}.{region}"
        self._after_identity = (
            f'{_AFTER_IDENTITY}"root_id":null,"parent_id":null,"group":null,'
            f'"retries":{attempt - 1},"eta":null,"expires":null,"timelimit":[null,null],"ignore_result":true,'
            f'"kwargsrepr":"{{}}","argsrepr":"({subscription_id}, \'{region}\', {attempt}, '
        )
        self._after_id = (
            ')"},"content-type":"application/json","content-encoding":"utf-8","properties":{"delivery_mode":2,'
            f'"priority":0,"delivery_info":{{"exchange":"","routing_key":"{queue_name(region)}"}},"delivery_tag":"'
        )
        arguments = f'[[{subscription_id},"{region}",{attempt},'
        self._before_message = _BODY + _escape(arguments)
        self._after_message = _escape(f"],{{}},{EMBED}]") + '"}'

    def render(self, message_id: str, escaped_message: str) -> str:
        """The task message for a message whose JSON text, escaped by `escaped`, is given."""
        identity = message_id + self._suffix
        return (
            f"{_HEAD}{identity}{self._after_identity}{message_id}{self._after_id}{identity}"
            f"{self._before_message}{escaped_message}{self._after_message}"
        )


def _escape(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def escaped(message: Mapping[str, Any]) -> str:
    """A message's JSON text, once more escaped to stand inside the body's JSON string."""
    return escaped_text(orjson.dumps(message).decode())


def escaped_text(message: str) -> str:
    """The same for a message whose JSON text is at hand."""
    return _escape(message)


def reference(message_id: int) -> dict[str, str]:
    """What stands in a task for a message whose payload is left in the database."""
    return {"messageId": str(message_id)}


def own_parse(message: bytes) -> tuple[str, str] | None:
    """Task id and body of a message that a template rendered; None for any other, which is to be decoded as a whole.

    Decoding the rest, always the same, takes three times as long. Raises a ValueError where the body is no JSON string.
    """
    end = message.find(b'"', len(_HEAD))
    # What comes before the body is all ours, and quotes inside it are escaped: the first is the right one.
    at = message.find(_BODY_BYTES, end)
    if at < 0 or not message.startswith(_HEAD_BYTES) or not message.startswith(_AFTER_IDENTITY_BYTES, end):
        return None
    return message[len(_HEAD) : end].decode(), orjson.loads(message[at + len(_BODY) - 1 : -1])


def body_parse(body: str | bytes) -> DeliverTask:
    """The arguments in a task message's body; ValueError or TypeError when it is none of ours."""
    (subscription_id, region, attempt, message), _kwargs, _embed = orjson.loads(body)
    return DeliverTask(subscription_id, region, attempt, message)
