"""Offers stored messages to Redis, which appends a task message for each delivery to the backlog of its lane."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import redis

from deliveries.backlog.default import default_backlog, impatient_backlog
from deliveries.backlog.lanes import lane_offered
from deliveries.backlog.records import Lane, Offer, OfferedMessage, key_digest
from deliveries.models import LostOffer
from deliveries.rules.payload import NewMessage, publish_time_text, wire_message
from deliveries.rules.taskmessage import escape_message, reference
from deliveries.store.lostoffers import note_lost
from deliveries.store.regionholds import holds
from deliveries.telemetry.events import Owed, Published
from deliveries.telemetry.sinks.observing import observe
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)

#: Set while Redis gives no answer: not every publish waits as long as the first one.
_is_silent = threading.Event()


def offer_all(requests: Sequence[Published]) -> None:
    """Offer the messages of committed requests, in one round trip for a few of them, and report the publishes.

    If Redis is away, that is logged, but the publish succeeds: the reconciler finds the deliveries later. What ordered
    lanes were not told is noted in the database; raises its errors.
    """
    try:
        _offer_all(requests)
    finally:
        observe(requests)


def _offer_all(requests: Sequence[Published]) -> None:
    # Asked once for each: one that is neither noted nor offered would wait for the audit.
    are_held = [holds(request.region) for request in requests]
    note_lost(
        LostOffer(subscription_id=owed.subscriber.id, region=request.region, message_id=_first_id(request, owed))
        for request, is_held in zip(requests, are_held, strict=True)
        if not is_held
        for owed in request.owed
        if owed.indices
    )
    requests = list(compress(requests, are_held))
    offers = list(_offers(requests))
    if not offers:
        return
    backlog = impatient_backlog(asker="offer") if _is_silent.is_set() else default_backlog()
    try:
        backlog.offer(offers)
        _is_silent.clear()
    except redis.RedisError as error:
        if isinstance(error, redis.TimeoutError):
            _is_silent.set()
        logger.warning("the audit will offer messages", exc_info=error)
        note_lost(
            LostOffer(**lane._asdict(), message_id=first_id) for lane, first_id in _first_of_ordered(requests).items()
        )


def _first_of_ordered(requests: Iterable[Published]) -> dict[Lane, int]:
    """Return the first message that each ordered lane is owed."""
    first_ids: dict[Lane, int] = {}
    for request in requests:
        for owed in request.owed:
            if owed.subscriber.ordered and owed.indices:
                lane, first_id = Lane(owed.subscriber.id, request.region), _first_id(request, owed)
                first_ids[lane] = min(first_ids.get(lane, first_id), first_id)
    return first_ids


def _first_id(request: Published, owed: Owed) -> int:
    """Return the smallest id. Ids don't ascend where a clock was ahead: a key keeps its order (storing.py)."""
    return min(request.ids[index] for index in owed.indices)


def _offers(requests: Sequence[Published]) -> Iterator[Offer]:
    """Yield the offers that requests make: one for all lanes that are owed the same messages."""
    texts: list[list[OfferedMessage]] = []
    subscribers: dict[Lane, PushSettings] = {}
    #: The messages that each lane is owed: pairs of a request's number and the indices of its messages.
    parts: dict[Lane, list[tuple[int, Sequence[int]]]] = {}
    for number, request in enumerate(requests):
        recipients = [owed for owed in request.owed if owed.indices]
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
        owed_messages = sorted(texts[number][index] for number, indices in parts[lanes[0]] for index in indices)
        yield Offer(lanes[0].region, offered, owed_messages)


def _texts(request: Published) -> list[OfferedMessage]:
    """Return what an offer says of each message."""
    is_ordered = any(owed.subscriber.ordered for owed in request.owed)
    befores: Sequence[int | None] = request.befores or [None] * len(request.ids)
    return [
        OfferedMessage(
            message_id,
            escape_message(_task_message(message_id, message)),
            key_digest(message.ordering_key) if is_ordered else "",
            before,
        )
        for message_id, message, before in zip(request.ids, request.messages, befores, strict=True)
    ]


def _task_message(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
