"""Writing services of the data plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deliveries.publish.storing import message_ids_take, messages_store
from deliveries.publish.transforming import messages_transform
from deliveries.rules.payload import NewMessage
from subscriptions.models import Topic
from subscriptions.quotas import publish_charge
from subscriptions.services.schemas import message_stamps
from subscriptions.transforms.functions import functions_on


def message_publish(*, topic: Topic, messages: Sequence[NewMessage], region: str = "") -> list[str]:
    """Store messages and one delivery for each subscription of the topic, then offer them; returns the message ids.

    The topic's message transforms come first: a message that they filter is not stored, and has an id all the same.

    All or nothing: when it returns, every message is committed; when it raises, none is. Redis may be away: then
    the deliveries wait in the database until the reconciler finds them. Raises ResourceExhausted over a quota.
    """
    publish_charge(
        topic=topic.name,
        project=topic.project.project_id,
        sizes=(message.size for message in messages),
        ordering_key=messages[0].ordering_key if messages else "",
    )
    functions = functions_on(topic.message_transforms)
    if not functions:
        return _store(topic, messages, region)
    transformed = messages_transform(topic=topic, functions=functions, messages=messages)
    kept = [message for message in transformed if message is not None]
    ids = iter(_store(topic, kept, region) if kept else ())
    # A filtered message has an id that nothing else has.
    return [str(message_ids_take(1)[0]) if message is None else next(ids) for message in transformed]


def _store(topic: Topic, messages: Sequence[NewMessage], region: str) -> list[str]:
    if topic.schema_settings:
        stamps = message_stamps(topic.schema_settings, [message.data for message in messages])
        messages = [
            replace(message, attributes={**message.attributes, **stamp})
            for message, stamp in zip(messages, stamps, strict=True)
        ]
    published = messages_store(topic=topic, messages=messages, region=region)
    published.offer()
    return [str(message_id) for message_id in published.ids]
