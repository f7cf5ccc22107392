"""Applies a subscription's message transforms to messages on their way out (docs/spec-delivery.md#message-transforms).

It is done for each attempt: what is stored, retried and dead-lettered is the message as it was published.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from deliveries.publish.request import check_transformed_messages
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import InvalidArgument
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Filtered, Input, Result
from subscriptions.transforms.sandboxes import sandboxes

#: A message in the form that travels in tasks (rules/payload.py).
Wire = Mapping[str, Any]


def transform_wire_messages(
    *, project: str, functions: Sequence[Function], messages: Sequence[Wire], seconds: float
) -> list[Wire | Failed | Filtered]:
    """Return the first messages as the functions make them, as many as this time allows, and at least one.

    Raises ResourceExhausted if others use the project's sandbox.
    """
    return transformed(messages, sandboxes().run(project, functions, _inputs(messages), seconds=seconds))


def begin_transforms(
    *, project: str, functions: Sequence[Function], messages: Sequence[Wire], seconds: float
) -> Future[list[Result]]:
    """Return the future of the results, of which `transformed` makes messages. It ends in a thread of the sandboxes."""
    return sandboxes().submit(project, functions, _inputs(messages), seconds=seconds)


def transformed(messages: Sequence[Wire], results: Sequence[Result]) -> list[Wire | Failed | Filtered]:
    """Return the first messages, as many as there are results, as the results make them."""
    return [_output(message, result) for message, result in zip(messages, results, strict=False)]


def _inputs(messages: Sequence[Wire]) -> list[Input]:
    return [_input(message) for message in messages]


def _input(message: Wire) -> Input:
    # Functions see whole seconds.
    metadata = {"message_id": message["messageId"], "publish_time": message["publishTime"][:19] + "Z"}
    if "orderingKey" in message:
        metadata["ordering_key"] = message["orderingKey"]
    return Input(base64.b64decode(message.get("data", "")), message.get("attributes", {}), metadata)


def _output(message: Wire, result: Result) -> Wire | Failed | Filtered:
    if isinstance(result, Failed) or result is FILTERED:
        return result
    try:
        check_transformed_messages([NewMessage(result.data, result.attributes)])
    except InvalidArgument as error:
        return Failed(error.message)
    content = {"attributes": result.attributes, "data": base64.b64encode(result.data).decode()}
    rest = {name: message[name] for name in ("messageId", "orderingKey", "publishTime") if name in message}
    return {name: value for name, value in content.items() if value} | rest
