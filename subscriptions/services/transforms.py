"""Tries message transforms in the sandbox, before they are stored and at the request of their authors."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pushhub.common.errors import InvalidArgument
from pushhub.common.protojson import parse_bytes
from subscriptions import selectors
from subscriptions.resources import fields
from subscriptions.resources.transforms import function_of, functions_of
from subscriptions.transforms.functions import Function, functions_on
from subscriptions.transforms.results import FILTERED, Failed, Input, Result
from subscriptions.transforms.sandboxes import sandboxes

#: The time limit of each function of a test.
TEST_SECONDS = 5.0
#: Valid functions that a process remembers. Each may have 20 kB of code.
REMEMBERED_FUNCTIONS = 100


def check_transforms(*, project: str, transforms: Sequence[Mapping[str, Any]]) -> None:
    """Raise InvalidArgument unless the code of each transform can be run and has the function that it names.

    It runs users' code, so the caller must not hold a transaction.
    """
    for index, function in enumerate(functions_of(transforms, field="messageTransforms")):
        _check(project, function, field=f"messageTransforms[{index}]")


def validate_transform(*, project: str, request: object) -> None:
    """Raise InvalidArgument unless the transform of a ValidateMessageTransformRequest could be stored."""
    parsed = fields.VALIDATE_MESSAGE_TRANSFORM.read(request)
    function = function_of(parsed.get("messageTransform", {}), field="messageTransform")
    _check(project, function, field="messageTransform")


def try_transforms(*, project: str, request: object) -> list[dict[str, Any]]:
    """Return what each transform of a TestMessageTransformsRequest makes of its message, in JSON form.

    The list ends with the transform that filters the message or fails. A transform that is disabled has no entry.
    """
    parsed = fields.TEST_TRANSFORMS.read(request)
    functions = _functions_to_test(parsed)
    message = parsed.get("message", {})
    current = Input(
        parse_bytes(message.get("data", ""), field="message.data"),
        message.get("attributes", {}),
        {"ordering_key": message["orderingKey"]} if "orderingKey" in message else {},
    )
    outcomes: list[dict[str, Any]] = []
    for function in functions:
        [result] = sandboxes().run(project, [function], [current], seconds=TEST_SECONDS)
        outcomes.append(_outcome(result, message))
        if isinstance(result, Failed) or result is FILTERED:
            break
        current = Input(result.data, result.attributes, current.metadata)
    return outcomes


@lru_cache(maxsize=REMEMBERED_FUNCTIONS)
def check_function(project: str, function: Function) -> None:
    """Raise InvalidArgument with the reason unless the function can be used.

    A valid function is remembered: a form checks it before its transaction begins, and its service runs no code again.
    """
    fault = sandboxes().check(project, function)
    if fault:
        raise InvalidArgument(fault)


def _functions_to_test(parsed: Mapping[str, Any]) -> Sequence[Function]:
    if len(parsed.keys() & {"messageTransforms", "topic", "subscription"}) != 1:
        raise InvalidArgument(
            "The request must have one of messageTransforms, topic and subscription.", field="messageTransforms"
        )
    if "topic" in parsed:
        return functions_on(selectors.get_topic(name=parsed["topic"], field="topic").message_transforms)
    if "subscription" in parsed:
        return functions_on(selectors.get_subscription(name=parsed["subscription"]).message_transforms)
    field = "messageTransforms.messageTransforms"
    transforms = parsed["messageTransforms"].get("messageTransforms", [])
    functions_of(transforms, field=field)
    return functions_on(transforms)


def _outcome(result: Result, message: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(result, Failed):
        return {"messageTransformFailure": {"description": result.why}}
    if result is FILTERED:
        return {"messageFiltered": {}}
    transformed = {
        "data": base64.b64encode(result.data).decode(),
        "attributes": dict(result.attributes),
        "orderingKey": message.get("orderingKey", ""),
    }
    return {"transformedMessage": {field: value for field, value in transformed.items() if value}}


def _check(project: str, function: Function, *, field: str) -> None:
    try:
        check_function(project, function)
    except InvalidArgument as error:
        raise InvalidArgument(
            f"The function {function.name} is not valid. {error.message}", field=f"{field}.javascriptUdf.code"
        ) from error
