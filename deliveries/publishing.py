"""How messages become deliveries: stored with a row for each subscription that is owed them, then offered to Redis."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import redis
from django.conf import settings
from django.db import IntegrityError, connection

from deliveries import store
from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure, lane_offer
from deliveries.groupcommit import GroupCommit
from deliveries.journal import records
from deliveries.rules.ids import NODE_SIZE, MessageIds
from deliveries.rules.payload import NewMessage, attributes_text, publish_time_text, wire_message
from deliveries.rules.taskmessage import TaskTemplate, escaped, reference
from deliveries.turns import write_transaction
from subscriptions.filters import matcher
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings, subscriptions_of_topic

logger = logging.getLogger(__name__)

#: Two processes that drew the same number meet in the primary key; each try draws anew, so three are plenty.
ID_TRIES = 3

_message_ids = MessageIds(node=secrets.randbelow(NODE_SIZE))


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that are stored, and who is owed them."""

    topic: Topic
    ids: Sequence[int]
    messages: Sequence[NewMessage]
    subscribers: Sequence[PushSettings]
    region: str

    def offer(self) -> None:
        """Hand them to Redis, once they are committed. Redis may be away: the reconciler finds them later."""
        records.published(topic=self.topic, ids=self.ids, messages=self.messages, region=self.region)
        offer_quietly(self.ids, self.messages, subscribers=self.subscribers, region=self.region)


def messages_store(
    *, topic: Topic, messages: Sequence[NewMessage], region: str = "", only: int | None = None
) -> Published:
    """Store messages and their deliveries, in the caller's transaction or one of their own, without offering them.

    `only` is the primary key of the one subscription that is owed them, where not all are.
    """
    request = Request(topic, messages, region or settings.REGION, only)
    if connection.vendor != "sqlite" or connection.in_atomic_block:
        return _commit([request])[0]  # PostgreSQL groups commits itself
    return _groups.commit(request)


@dataclass(frozen=True, slots=True)
class Request:
    """Messages that are to be stored."""

    topic: Topic
    messages: Sequence[NewMessage]
    region: str
    only: int | None


def _commit(requests: Sequence[Request]) -> list[Published]:
    """Insert everything in one transaction, under new ids."""
    attempt = 1
    while True:
        try:
            with write_transaction():
                return [_insert(request) for request in requests]
        except IntegrityError:
            _message_ids.renumber(node=secrets.randbelow(NODE_SIZE))
            if attempt == ID_TRIES:
                raise
            attempt += 1


def _insert(request: Request) -> Published:
    """The subscriptions are read inside the transaction: each owns what is published after its create answer."""
    topic, messages, region = request.topic, request.messages, request.region
    ids = _message_ids.take(len(messages), now_ms=time.time_ns() // 1_000_000)
    subscribers = [one for one in subscriptions_of_topic(topic.pk) if request.only in (None, one.id)]
    store.messages_insert(
        [
            (message_id, topic.pk, region, message.data, attributes_text(message.attributes), message.ordering_key)
            for message_id, message in zip(ids, messages, strict=True)
        ]
    )
    for subscriber in subscribers:
        owed = owed_by(subscriber, messages)
        store.deliveries_insert([(ids[index], subscriber.id, region, 0, "") for index in owed])
    return Published(topic, ids, messages, subscribers, region)


_groups = GroupCommit(_commit)


def owed_by(subscriber: PushSettings, messages: Sequence[NewMessage]) -> Sequence[int]:
    """The indices of the messages that pass a subscription's filter; the others count as acknowledged."""
    if not subscriber.filter:
        return range(len(messages))
    passes = matcher(subscriber.filter)
    return [index for index, message in enumerate(messages) if passes(message.attributes)]


def offer_quietly(
    ids: Sequence[int], messages: Sequence[NewMessage], *, subscribers: Sequence[PushSettings], region: str
) -> None:
    """Hand committed messages to Redis; its absence is logged and no reason to fail a publish."""
    try:
        for subscriber in subscribers:
            if subscriber.ordered and owed_by(subscriber, messages):
                lane_configure(Lane(subscriber.id, region), subscriber, action="more", from_id=ids[0])
        _offer(ids, messages, subscribers=[one for one in subscribers if not one.ordered], region=region)
    except redis.RedisError as error:
        logger.warning("offer put off until Redis is back: %s", type(error).__name__)


def _offer(
    ids: Sequence[int], messages: Sequence[NewMessage], *, subscribers: Sequence[PushSettings], region: str
) -> None:
    if not subscribers:
        return
    texts = [escaped(_traveller(message_id, message)) for message_id, message in zip(ids, messages, strict=True)]
    names = [str(message_id) for message_id in ids]
    offers = []
    for subscriber in subscribers:
        render = TaskTemplate(subscription_id=subscriber.id, region=region, attempt=1).render
        tasks = [(ids[index], render(names[index], texts[index])) for index in owed_by(subscriber, messages)]
        offers.append(lane_offer(Lane(subscriber.id, region), subscriber, tasks))
    default_backlog().offer(offers)


def _traveller(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
