"""Writing services of the data plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deliveries.publish.offering import offer_all
from deliveries.publish.request import check_transformed_messages
from deliveries.publish.storing import store_messages, take_message_ids
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.sinks.requests import refusals_counted
from pushhub.common.errors import DeadlineExceeded, InvalidArgument
from pushhub.common.tenantpool import is_called_again, result_of
from subscriptions.models import Topic
from subscriptions.quotas import charge_publish
from subscriptions.services.schemas import message_stamps
from subscriptions.transforms.functions import Function, functions_on
from subscriptions.transforms.results import FILTERED, Failed, Input
from subscriptions.transforms.sandboxes import sandboxes


def publish_message(*, topic: Topic, messages: Sequence[NewMessage], region: str = "") -> list[str]:
    """Store messages and one delivery for each subscription of the topic, then offer them; returns the message ids.

    The topic's message transforms come first: a message that they filter is not stored, and has an id all the same.

    All or nothing: when it returns, every message is committed; when it raises, none is. Redis may be away: then
    the deliveries wait in the database until the reconciler finds them. Raises ResourceExhausted over a quota.
    """
    with refusals_counted(topic.pk):
        if not is_called_again():
            charge_requests(topic, [messages])
        results = _transformed(topic, messages)
        kept = _stamped(topic, [message for message in results if message is not None])
        published = store_messages(topic=topic, messages=kept, region=region) if kept else None
    if published is None:
        return [str(message_id) for message_id in take_message_ids(len(results))]
    offer_all([published])
    ids = iter(published.ids)
    # A filtered message has an id that nothing else has.
    return [str(take_message_ids(1)[0] if message is None else next(ids)) for message in results]


def charge_requests(topic: Topic, requests: Iterable[Sequence[NewMessage]]) -> None:
    """Charge the messages of publish requests to the quotas. Raises ResourceExhausted, and charges nothing then."""
    charged = ((messages[0].ordering_key, sum(message.size for message in messages)) for messages in requests)
    charge_publish(topic=topic.name, project=topic.project.project_id, requests=charged)


def _transformed(topic: Topic, messages: Sequence[NewMessage]) -> Sequence[NewMessage | None]:
    """Return the messages as the topic's message transforms make them; None for each that they filter."""
    functions = functions_on(topic.message_transforms)
    return transform_messages(topic=topic, functions=functions, messages=messages) if functions else messages


def _stamped(topic: Topic, messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """Return the messages with the attributes that name the revision of the topic's schema which they match."""
    if not topic.schema_settings:
        return messages
    stamps = message_stamps(topic.schema_settings, [message.data for message in messages])
    return [
        replace(message, attributes={**message.attributes, **stamp})
        for message, stamp in zip(messages, stamps, strict=True)
    ]


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
        Input(message.data, message.attributes, {"ordering_key": message.ordering_key} if message.ordering_key else {})
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
