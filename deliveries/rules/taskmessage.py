"""The Celery task message of a delivery, as text: Celery protocol 2 in kombu's Redis form.

Each is a complete message that a stock Celery worker can run. A template builds it in a few microseconds, where
Celery's own `apply_async` takes half a millisecond. The body is not in base64, so that people can read it in Redis. The
headers' `id` comes first and has the message id, the subscription and the region, because the Lua scripts read it
there. The header `lane` has the generation of the lane and, after a seek, the seek's number; older versions, which may
run at the same time, don't look at it. Within a process the two are one text, the task's id.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import orjson

TASK_NAME = "deliveries.deliver"
QUEUE_PREFIX = "deliveries."
#: The parts of a rendered message by which `parse_own` finds its way.
_HEAD = '{"headers":{"id":"'
_AFTER_IDENTITY = f'","lang":"py","task":"{TASK_NAME}","lane":"'
_BODY = '"},"body":"'
_HEAD_BYTES, _AFTER_IDENTITY_BYTES, _BODY_BYTES = _HEAD.encode(), _AFTER_IDENTITY.encode(), _BODY.encode()
EMBED = '{"callbacks":null,"errbacks":null,"chain":null,"chord":null}'


class DeliverTask(NamedTuple):
    """The arguments of the task `deliveries.deliver`."""

    subscription_id: int
    region: str
    #: 1 for the first attempt, later 1 + nacks and lapsed leases.
    attempt: int
    #: The `message` object of the push body without its doubled keys. It has only `messageId` if the payload is too
    #: large for Redis and stays in the database.
    message: Mapping[str, Any]

    @property
    def message_id(self) -> int:
        return int(self.message["messageId"])

    @property
    def is_reference(self) -> bool:
        return "publishTime" not in self.message


def queue_name(region: str) -> str:
    return QUEUE_PREFIX + region


def task_id_of(headers: Mapping[str, Any]) -> str:
    """Return a task's id, from a message of any version."""
    return _joined(headers["id"], headers.get("lane", ""))


def _joined(identity: str, lane: str) -> str:
    return f"{identity}.{lane}" if lane else identity


def generation_of(task_id: str) -> str:
    """Return the generation of a task's lane; "" in tasks of an older version."""
    parts = task_id.split(".")
    return parts[3] if len(parts) > 3 else ""


def seek_of(task_id: str) -> int:
    """Return the number of the last seek that made the subscription owe a task's message, or 0."""
    parts = task_id.split(".")
    return int(parts[4]) if len(parts) > 4 else 0


class TaskTemplate:
    """Renders task messages for one subscription, region, attempt, generation of the lane, and seek."""

    __slots__ = ("_after_id", "_after_identity", "_after_message", "_before_message", "_suffix")

    def __init__(
        self, *, subscription_id: int | str, region: str, attempt: int, generation: str, seek: int = 0
    ) -> None:
        self._suffix = f".{subscription_id}.{region}"
        lane = f"{generation}.{seek}" if seek else generation
        self._after_identity = (
            f'{_AFTER_IDENTITY}{lane}","root_id":null,"parent_id":null,"group":null,'
            f'"retries":{attempt - 1},"eta":null,"expires":null,"timelimit":[null,null],"ignore_result":true,'
            f'"kwargsrepr":"{{}}","argsrepr":"({subscription_id}, \'{region}\', {attempt}, '
        )
        self._after_id = (
            ')"},"content-type":"application/json","content-encoding":"utf-8","properties":{"delivery_mode":2,'
            f'"priority":0,"delivery_info":{{"exchange":"","routing_key":"{queue_name(region)}"}},"delivery_tag":"'
        )
        arguments = f'[[{subscription_id},"{region}",{attempt},'
        self._before_message = _BODY + escape_text(arguments)
        self._after_message = escape_text(f"],{{}},{EMBED}]") + '"}'

    def render(self, message_id: str, escaped_message: str) -> str:
        """Return the task message for a message in JSON text that `escape_message` has escaped."""
        identity = message_id + self._suffix
        return (
            f"{_HEAD}{identity}{self._after_identity}{message_id}{self._after_id}{identity}"
            f"{self._before_message}{escaped_message}{self._after_message}"
        )


@cache
def task_parts(region: str) -> tuple[str, ...]:
    """Return the parts of a first attempt's task message between its ids and its message text.

    The values between them are, in this order: message id, subscription id, generation, subscription id, message id
    twice, subscription id twice, and the text that `escape_message` returns. offer.lua puts them in, once for each
    subscription.
    """
    # Neither a region nor the rest of a task message has a "$".
    pattern = TaskTemplate(subscription_id="$", region=region, attempt=1, generation="$").render("$", "$")
    return tuple(pattern.split("$"))


def escape_message(message: Mapping[str, Any]) -> str:
    """Return a message as JSON text, escaped to stand inside the body's JSON string."""
    return escape_text(orjson.dumps(message).decode())


def escape_text(text: str) -> str:
    """Return the text, escaped to stand inside the body's JSON string."""
    return orjson.dumps(text).decode()[1:-1]


def reference(message_id: int) -> dict[str, str]:
    """Return what a task has in place of a message whose payload stays in the database."""
    return {"messageId": str(message_id)}


def parse_own(message: bytes) -> tuple[str, str] | None:
    """Return the task id and the body of a message that a template of this version has rendered.

    Returns None for any other message, which must be decoded as a whole. Decoding the constant parts as well would take
    three times as long. Raises ValueError if the body is no JSON string.
    """
    end = message.find(b'"', len(_HEAD))
    # PushHub has written everything before the body, with escaped quotes, so that the first match is the right one.
    at = message.find(_BODY_BYTES, end)
    if at < 0 or not message.startswith(_HEAD_BYTES) or not message.startswith(_AFTER_IDENTITY_BYTES, end):
        return None
    lane_at = end + len(_AFTER_IDENTITY)
    lane = message[lane_at : message.index(b'"', lane_at)]
    return _joined(message[len(_HEAD) : end].decode(), lane.decode()), orjson.loads(message[at + len(_BODY) - 1 : -1])


def parse_any(message: bytes) -> tuple[str, str | bytes]:
    """Return the task id and body of a message of any version. Raises ValueError, TypeError or KeyError for others."""
    raw = orjson.loads(message)
    return task_id_of(raw["headers"]), raw["body"]


def body_of(message: Mapping[str, Any]) -> str | bytes:
    """Return the body of a decoded message, which is in base64 if Celery's `apply_async` has sent it."""
    body: str = message["body"]
    is_encoded = message.get("properties", {}).get("body_encoding") == "base64"
    return base64.b64decode(body) if is_encoded else body


def parse_body(body: str | bytes) -> DeliverTask:
    """Return the arguments in a task message's body. Raises ValueError or TypeError for any other body."""
    (subscription_id, region, attempt, message), _kwargs, _embed = orjson.loads(body)
    return DeliverTask(subscription_id, region, attempt, message)
