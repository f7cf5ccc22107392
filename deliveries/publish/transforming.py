"""Applies the message transforms of a topic to a publish request (docs/spec.md#message-transforms)."""

from __future__ import annotations

from collections.abc import Sequence

from deliveries.publish.request import check_transformed_messages
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import DeadlineExceeded, InvalidArgument
from pushhub.common.tenantpool import result_of
from subscriptions.models import Topic
from subscriptions.transforms.functions import Function
from subscriptions.transforms.results import FILTERED, Failed, Input
from subscriptions.transforms.sandboxes import sandboxes

#: The functions may take so long for all messages of a request.
REQUEST_SECONDS = 10.0


def transform_messages(
    *, topic: Topic, functions: Sequence[Function], messages: Sequence[NewMessage]
) -> list[NewMessage | None]:
    """Return each message as the functions make it; None for a message that they filter.

    Raises InvalidArgument for a message with which a function fails, DeadlineExceeded if the functions take too long,
    and ResourceExhausted if other requests of the topic's project take the time.
    """
    inputs = [
        Input(
            message.data,
            message.attributes,
            {"ordering_key": message.ordering_key} if message.ordering_key else {},
        )
        for message in messages
    ]
    project = topic.project.project_id
    results = result_of(lambda: sandboxes().submit(project, functions, inputs, seconds=REQUEST_SECONDS, needs_all=True))
    transformed: list[NewMessage | None] = []
    for index, (message, result) in enumerate(zip(messages, results, strict=False)):
        if isinstance(result, Failed):
            raise InvalidArgument(
                f"The message transforms of the topic failed with messages[{index}]. {result.why}",
                field=f"messages[{index}]",
            )
        transformed.append(
            None if result is FILTERED else NewMessage(result.data, result.attributes, message.ordering_key)
        )
    if len(transformed) < len(messages):
        raise DeadlineExceeded(
            f"The message transforms of the topic took longer than {REQUEST_SECONDS:.0f} s. Publish fewer messages in "
            "one request."
        )
    kept = [message for message in transformed if message is not None]
    if kept:
        check_transformed_messages(kept)
    return transformed
