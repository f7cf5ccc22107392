"""Forwarding to dead-letter topics (docs/spec-messages.md#dead-letters).

In one transaction, a message without further attempts is published to the dead-letter topic and its delivery is
deleted. If the project's service agent lacks a permission, the topic is gone, or its message storage policy excludes
the region, the message goes on being delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from django.conf import settings
from django.db import connection

from deliveries.backlog.records import grouped
from deliveries.models import DeadLetter, Message
from deliveries.publish.offering import offer_all
from deliveries.publish.storing import store_messages
from deliveries.rules.payload import NewMessage, attributes_text, parse_attributes, publish_time_text
from deliveries.rules.regions import is_transit_allowed
from deliveries.store import lanerows, statements
from deliveries.telemetry.events import DeadLettered, Published, Source
from deliveries.telemetry.sinks.observing import observe
from pushhub.common.rows import row_or_none
from subscriptions.iam import access
from subscriptions.identity.agents import service_agent
from subscriptions.models import Subscription, Topic
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)

PREFIX = "CloudPubSubDeadLetterSource"
#: What a dead letter has beside the attributes of its message.
ATTRIBUTES = (
    f"{PREFIX}DeliveryCount",
    f"{PREFIX}Subscription",
    f"{PREFIX}SubscriptionProject",
    f"{PREFIX}TopicPublishTime",
)
PUBLISH = "pubsub.topics.publish"
CONSUME = "pubsub.subscriptions.consume"


@dataclass(slots=True)
class Moved:
    """The messages that were moved. Call `announce_all` once the transaction has committed."""

    message_ids: set[int] = field(default_factory=set)
    announce: list[Callable[[], object]] = field(default_factory=list)

    def announce_all(self) -> None:
        take_steps(self.announce)


def take_steps(steps: Iterable[Callable[[], object]]) -> None:
    """Take the steps that follow a commit, whatever becomes of each: the audit finds out what Redis was not told."""
    for step in steps:
        try:
            step()
        except Exception:
            logger.exception("a step after a commit failed")
            connection.close()  # it may still be in the step's transaction, which nobody would end


def is_spent(settings: PushSettings | None, *, attempts: int) -> bool:
    """Return whether a subscription's dead-letter policy allows no attempt after this many."""
    return settings is not None and 0 < settings.max_delivery_attempts <= attempts


def forward_dead_letters(
    *,
    subscription_id: int,
    region: str,
    attempts: Mapping[int, int],
    topic_id: int | None,
    seek: int = 0,
    results: Mapping[int, str] | None = None,
) -> Moved:
    """Forward deliveries to the dead-letter topic of their subscription; `attempts` has the attempts made of each.

    `topic_id` is what `usable_topic_id` returned before the transaction, which the caller owns. The attempts had this
    `seek` (docs/spec-messages.md#seek). `results` has the HTTP status or reason of each last nack of a push.
    The result lacks deliveries that cannot be forwarded.
    """
    forwarded = Moved()
    source = _source(subscription_id)
    topic = source.dead_letter_topic if source is not None else None
    if source is None or topic is None or topic.pk != topic_id:
        return forwarded
    # A message that was settled elsewhere meanwhile must not be published as a dead letter too.
    owed = lanerows.still_waiting(subscription_id=subscription_id, region=region, message_ids=list(attempts), seek=seek)
    if not owed or not is_transit_allowed(topic.message_storage_policy, region):
        return forwarded
    messages = list(Message.objects.filter(pk__in=owed).order_by("pk"))
    for group in grouped(messages, attrgetter("ordering_key")).values():
        letters = [_letter(row, source, attempts[row.pk]) for row in group]
        published = store_messages(topic=topic, messages=letters, region=region)
        _note(source, group, published, attempts=attempts, results=results or {})
        forwarded.announce.append(partial(offer_all, [published]))
    forwarded.message_ids = {row.pk for row in messages}
    statements.delete_deliveries(
        subscription_id=subscription_id, region=region, message_ids=sorted(forwarded.message_ids)
    )
    counted = {message_id: attempts[message_id] for message_id in sorted(forwarded.message_ids)}
    forwarded.announce.append(partial(observe, [DeadLettered(Source.of(source, region), counted)]))
    return forwarded


def usable_topic_id(subscription_id: int) -> int | None:
    """Return the primary key of the usable dead-letter topic, if any. Callers ask before their transaction.

    A subscription that was deleted during its last attempt has none.
    """
    source = _source(subscription_id)
    topic = dead_letter_topic_usable(source) if source is not None else None
    return topic.pk if topic is not None else None


def _source(subscription_id: int) -> Subscription | None:
    rows = Subscription.objects.select_related("project", "dead_letter_topic__project")
    return row_or_none(rows.filter(pk=subscription_id))


def dead_letter_topic_usable(source: Subscription) -> Topic | None:
    """Return the dead-letter topic, or None if it is gone or a permission is missing."""
    topic = source.dead_letter_topic
    if topic is None:
        return None
    agent = service_agent(source.project)
    # In development there are no grants, and a dead-letter policy works without them.
    is_allowed = settings.DEVELOPMENT or (
        access.allowed(agent, PUBLISH, topic) and access.allowed(agent, CONSUME, source)
    )
    return topic if is_allowed else None


def _letter(row: Message, source: Subscription, attempts: int) -> NewMessage:
    texts = (str(attempts), source.subscription_id, source.project.project_id, publish_time_text(row.pk))
    attributes = parse_attributes(row.attributes) | dict(zip(ATTRIBUTES, texts, strict=True))
    return NewMessage(bytes(row.data), attributes, row.ordering_key)


def _note(
    source: Subscription,
    rows: Sequence[Message],
    published: Published,
    *,
    attempts: Mapping[int, int],
    results: Mapping[int, str],
) -> None:
    """Record where dead letters came from and why, which their attributes don't prove: any publisher may set those."""
    received = {index for owed in published.owed for index in owed.indices}
    DeadLetter.objects.bulk_create(
        DeadLetter(
            message_id=letter_id,
            subscription=source,
            source_id=row.pk,
            attempts=attempts[row.pk],
            result=results.get(row.pk, ""),
            replaced=attributes_text(_replaced(row)),
            is_kept=index not in received,
        )
        for index, (letter_id, row) in enumerate(zip(published.ids, rows, strict=True))
    )


def _replaced(row: Message) -> dict[str, str]:
    """Return the attributes of the message that its dead letter has other values of."""
    return {name: value for name, value in parse_attributes(row.attributes).items() if name in ATTRIBUTES}
