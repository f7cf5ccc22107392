"""Writing services of the data plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from deliveries.publish.offering import offer_all
from deliveries.publish.storing import store_messages, take_message_ids
from deliveries.publish.transforming import transform_messages
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.sinks.requests import refusals_counted
from pushhub.common.tenantpool import is_called_again
from subscriptions.models import Topic
from subscriptions.quotas import charge_publish
from subscriptions.services.schemas import message_stamps
from subscriptions.transforms.functions import functions_on


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
