"""Offers stored messages to Redis, which appends a task message for each delivery to the backlog of its lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from deliveries.backlog.backlog import Lane, Offer
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane, lane_offered
from deliveries.models import LostOffer
from deliveries.rules.envelope import traceparent_of
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.payload import NewMessage, publish_time_text, wire_message
from deliveries.rules.taskmessage import escape_message, reference
from deliveries.store.lostoffers import note_lost
from deliveries.telemetry import recording, records
from pushhub.common import tracing
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Owed:
    """The messages of a request that one subscription is owed, as indices; the others count as acknowledged."""

    subscriber: PushSettings
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that were stored together, and the subscriptions that are owed them."""

    topic: Topic
    ids: Sequence[int]
    messages: Sequence[NewMessage]
    owed: Sequence[Owed]
    region: str
    #: The messages of each publish request, if there were several.
    publishes: Sequence[int] = ()

    def offer(self) -> None:
        """Record the messages in the journal and offer them, once they are committed."""
        offer_all([self])


def offer_all(requests: Sequence[Published]) -> None:
    """Record committed requests in the journal and offer their messages, in one round trip for a few of them.

    If Redis is away, that is logged, but the publish succeeds: the reconciler finds the deliveries later. What ordered
    lanes were not told is noted in the database; raises its errors.
    """
    for request in requests:
        records.published(
            topic=request.topic,
            ids=request.ids,
            messages=request.messages,
            region=request.region,
            publishes=request.publishes,
        )
        recording.count_filtered(
            {
                owed.subscriber.id: len(request.ids) - len(owed.indices)
                for owed in request.owed
                if owed.subscriber.filter and len(owed.indices) < len(request.ids)
            }
        )
    ordered = _first_of_ordered(requests)
    try:
        for lane, (first_id, subscriber) in ordered.items():
            configure_lane(lane, subscriber, action="more", from_id=first_id)
        default_backlog().offer(_offers(requests))
    except redis.RedisError as error:
        logger.warning("the audit will offer messages", exc_info=error)
        note_lost(
            LostOffer(subscription_id=lane.subscription_id, region=lane.region, message_id=first_id)
            for lane, (first_id, _) in ordered.items()
        )
    if tracing.is_on():
        tracing.add_spans(span for request in requests for span in _spans(request))


def _spans(request: Published) -> Iterator[tracing.Span]:
    """Return a span for each message of a request that its publisher traces, until it is stored and offered."""
    now = time.time()
    for message_id, message in zip(request.ids, request.messages, strict=True):
        traceparent = traceparent_of(message.attributes)
        trace = tracing.parse_context(traceparent) if traceparent else None
        if trace is not None:
            yield tracing.Span(
                f"{request.topic.topic_id} publish",
                "SERVER",
                tracing.publish_context(trace, message_id),
                trace,
                publish_time_ms(message_id) / 1000,
                now,
                {
                    "messaging.system": "gcp_pubsub",
                    "messaging.destination.name": request.topic.name,
                    "messaging.operation.name": "publish",
                    "messaging.message.id": str(message_id),
                    "messaging.message.body.size": len(message.data),
                    "pushhub.region": request.region,
                },
            )


def _first_of_ordered(requests: Iterable[Published]) -> dict[Lane, tuple[int, PushSettings]]:
    """Return from which message on each ordered lane is to read the database, which has the order of its keys."""
    first_ids: dict[Lane, tuple[int, PushSettings]] = {}
    for request in requests:
        for owed in request.owed:
            if owed.subscriber.ordered and owed.indices:
                first = request.ids[owed.indices[0]], owed.subscriber
                first_ids.setdefault(Lane(owed.subscriber.id, request.region), first)
    return first_ids


def _offers(requests: Sequence[Published]) -> Iterator[Offer]:
    """Yield the offers that requests make: one for all lanes that are owed the same messages."""
    texts: list[list[tuple[int, str]]] = []
    subscribers: dict[Lane, PushSettings] = {}
    #: The messages that each lane is owed: pairs of a request's number and the indices of its messages.
    parts: dict[Lane, list[tuple[int, Sequence[int]]]] = {}
    for number, request in enumerate(requests):
        recipients = [owed for owed in request.owed if owed.indices and not owed.subscriber.ordered]
        texts.append(_texts(request) if recipients else [])
        for owed in recipients:
            lane = Lane(owed.subscriber.id, request.region)
            subscribers[lane] = owed.subscriber
            parts.setdefault(lane, []).append((number, owed.indices))
    # Subscriptions with the same filter share one list of indices.
    groups: dict[tuple[Any, ...], list[Lane]] = {}
    for lane, owed_parts in parts.items():
        key = (lane.region, *((number, id(indices)) for number, indices in owed_parts))
        groups.setdefault(key, []).append(lane)
    for lanes in groups.values():
        offered = [lane_offered(lane, subscribers[lane]) for lane in lanes]
        owed_messages = [texts[number][index] for number, indices in parts[lanes[0]] for index in indices]
        yield Offer(lanes[0].region, offered, owed_messages)


def _texts(request: Published) -> list[tuple[int, str]]:
    """Return the id and the escaped JSON text of each message."""
    pairs = zip(request.ids, request.messages, strict=True)
    return [(message_id, escape_message(_task_message(message_id, message))) for message_id, message in pairs]


def _task_message(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
