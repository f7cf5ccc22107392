"""Writing services of the data plane."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence

import redis
from django.conf import settings
from django.db import IntegrityError

from deliveries import store
from deliveries.backlog.backlog import Lane, Offer
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure, mode_of
from deliveries.journal import records
from deliveries.rules.ids import NODE_SIZE, MessageIds
from deliveries.rules.payload import NewMessage, attributes_text, publish_time_text, wire_message
from deliveries.rules.taskmessage import TaskTemplate, escaped, reference
from deliveries.turns import write_transaction
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings, subscriptions_of_topic

logger = logging.getLogger(__name__)

#: Two processes that drew the same number meet in the primary key; each try draws anew, so three are plenty.
ID_TRIES = 3

_message_ids = MessageIds(node=secrets.randbelow(NODE_SIZE))


def message_publish(*, topic: Topic, messages: Sequence[NewMessage], region: str = "") -> list[str]:
    """Store messages and one delivery for each subscription of the topic, then offer them; returns the message ids.

    All or nothing: when it returns, every message is committed; when it raises, none is. Redis may be away: then
    the deliveries wait in the database until the reconciler finds them.
    """
    region = region or settings.REGION
    for attempt in range(1, ID_TRIES + 1):
        ids = _message_ids.take(len(messages), now_ms=time.time_ns() // 1_000_000)
        try:
            subscribers = _commit(topic=topic, ids=ids, messages=messages, region=region)
            break
        except IntegrityError:
            _message_ids.renumber(node=secrets.randbelow(NODE_SIZE))
            if attempt == ID_TRIES:
                raise
    records.published(topic=topic, ids=ids, messages=messages, region=region)
    offer_quietly(ids, messages, subscribers=subscribers, region=region)
    return [str(message_id) for message_id in ids]


def _commit(*, topic: Topic, ids: Sequence[int], messages: Sequence[NewMessage], region: str) -> list[PushSettings]:
    """Insert everything in one transaction; returns the subscriptions that own the messages now.

    They are read inside it: a subscription owns each message published after its create answer.
    """
    with write_transaction():
        subscribers = subscriptions_of_topic(topic.pk)
        store.messages_insert(
            [
                (message_id, topic.pk, region, message.data, attributes_text(message.attributes), message.ordering_key)
                for message_id, message in zip(ids, messages, strict=True)
            ]
        )
        for subscriber in subscribers:
            store.deliveries_insert([(message_id, subscriber.id, region, 0, "") for message_id in ids])
    return subscribers


def offer_quietly(
    ids: Sequence[int], messages: Sequence[NewMessage], *, subscribers: Sequence[PushSettings], region: str
) -> None:
    """Hand committed messages to Redis; its absence is logged and no reason to fail a publish."""
    try:
        for subscriber in subscribers:
            if subscriber.ordered:
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
        tasks = [(message_id, render(name, text)) for message_id, name, text in zip(ids, names, texts, strict=True)]
        offers.append(Offer(Lane(subscriber.id, region), mode=mode_of(subscriber), messages=tasks))
    default_backlog().offer(offers)


def _traveller(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
