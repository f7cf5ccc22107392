"""Writing services of the data plane."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deliveries.counters.recording import refusals_counted
from deliveries.publish.offering import Published
from deliveries.publish.storing import messages_store
from deliveries.rules.payload import NewMessage
from subscriptions.models import Topic
from subscriptions.quotas import publish_charge
from subscriptions.services.schemas import message_stamps


def message_publish(*, topic: Topic, messages: Sequence[NewMessage], region: str = "") -> list[str]:
    """Store messages and one delivery for each subscription of the topic, then offer them; returns the message ids.

    All or nothing: when it returns, every message is committed; when it raises, none is. Redis may be away: then
    the deliveries wait in the database until the reconciler finds them. Raises ResourceExhausted over a quota.
    """
    with refusals_counted(topic.pk):
        published = _stored(topic, messages, region)
    published.offer()
    return [str(message_id) for message_id in published.ids]


def _stored(topic: Topic, messages: Sequence[NewMessage], region: str) -> Published:
    publish_charge(
        topic=topic.name,
        project=topic.project.project_id,
        sizes=(message.size for message in messages),
        ordering_key=messages[0].ordering_key if messages else "",
    )
    if topic.schema_settings:
        stamps = message_stamps(topic.schema_settings, [message.data for message in messages])
        messages = [
            replace(message, attributes={**message.attributes, **stamp})
            for message, stamp in zip(messages, stamps, strict=True)
        ]
    return messages_store(topic=topic, messages=messages, region=region)
