"""How messages become deliveries: stored with a row for each subscription that is owed them, then offered to Redis."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter

import redis
from django.conf import settings
from django.db import IntegrityError, connection

from deliveries.backlog.backlog import Lane
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure, lane_offer
from deliveries.journal import records
from deliveries.rules.ids import FAN_OUT_NODE, NODE_SIZE, MessageIds
from deliveries.rules.payload import NewMessage, attributes_text, publish_time_text, wire_message
from deliveries.rules.regions import storage_region
from deliveries.rules.taskmessage import TaskTemplate, escaped, reference
from deliveries.store import statements
from deliveries.store.fanout import SLICE_ROWS, delivery_slices, fan_out
from deliveries.store.groupcommit import GroupCommit
from deliveries.store.writelock import write_transaction
from pushhub.common.errors import ResourceExhausted
from subscriptions.models import Topic
from subscriptions.resources.filters import matcher
from subscriptions.selectors import PushSettings, subscriptions_of_topic

logger = logging.getLogger(__name__)

#: Two processes that drew the same number meet in the primary key; each try draws anew, so three are plenty.
ID_TRIES = 3

#: Deliveries that one request may make; storing them takes ten seconds on SQLite.
MAX_DELIVERIES = 1_000_000
#: SQLite writes so many bytes in the time of a row.
BYTES_AS_A_ROW = 2_000
#: Task messages that one call of a script appends, during which Redis answers nobody else.
OFFER_MESSAGES = 250
#: Bytes of task messages that are sent to Redis in one round trip.
OFFER_BYTES = 4_000_000


def _draw_node() -> int:
    return FAN_OUT_NODE + 1 + secrets.randbelow(NODE_SIZE - 1)


_message_ids = MessageIds(node=_draw_node())


@dataclass(frozen=True, slots=True)
class Owed:
    """The messages of a request that one subscription is owed, as indices; the others count as acknowledged."""

    subscriber: PushSettings
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that are stored, and who is owed them."""

    topic: Topic
    ids: Sequence[int]
    messages: Sequence[NewMessage]
    owed: Sequence[Owed]
    region: str

    def offer(self) -> None:
        """Hand them to Redis, once they are committed. Redis may be away: the reconciler finds them later."""
        records.published(topic=self.topic, ids=self.ids, messages=self.messages, region=self.region)
        offer_quietly(self.ids, self.messages, owed=self.owed, region=self.region)


def messages_store(
    *, topic: Topic, messages: Sequence[NewMessage], region: str = "", only: int | None = None
) -> Published:
    """Store messages and their deliveries, in the caller's transaction or one of their own, without offering them.

    `only` is the primary key of the one subscription that is owed them, where not all are. Raises FailedPrecondition in
    a region that the topic excludes, and ResourceExhausted for more deliveries than one request may make, and while
    this process stores as many large requests as it may.
    """
    region = storage_region(topic.message_storage_policy, region or settings.REGION, own_region=settings.REGION)
    # Read after the call began, the list has each subscription whose create call was answered before that.
    subscribers = [one for one in subscriptions_of_topic(topic.pk) if only in (None, one.id)]
    if connection.in_atomic_block:
        return _commit([Request(topic, messages, region, owed_by(subscribers, messages))])[0]
    request = Request(topic, messages, region, owed_by(subscribers, messages, limit=MAX_DELIVERIES))
    if request.deliveries > SLICE_ROWS:
        with _large_request():
            return _fan_out(request) if connection.vendor == "sqlite" else _commit([request])[0]
    if connection.vendor != "sqlite":
        return _commit([request])[0]  # PostgreSQL groups commits itself
    return _groups.commit(request)


@dataclass(frozen=True, slots=True)
class Request:
    """Messages that are to be stored, and who is owed them."""

    topic: Topic
    messages: Sequence[NewMessage]
    region: str
    owed: Sequence[Owed]

    @property
    def deliveries(self) -> int:
        return sum(len(one.indices) for one in self.owed)

    @property
    def weight(self) -> int:
        """How long storing it takes, in rows; writing so many bytes takes as long as a row."""
        size = sum(len(message.data) for message in self.messages)
        return self.deliveries + len(self.messages) + size // BYTES_AS_A_ROW


def _commit(requests: Sequence[Request]) -> list[Published]:
    """Insert everything in one transaction, under new ids."""
    attempt = 1
    while True:
        try:
            with write_transaction():
                return [_insert(request) for request in requests]
        except IntegrityError:
            _message_ids.renumber(node=_draw_node())
            if attempt == ID_TRIES:
                raise
            attempt += 1


def _insert(request: Request) -> Published:
    ids = _message_ids.take(len(request.messages), now_ms=time.time_ns() // 1_000_000)
    _insert_messages(request, ids)
    for rows in delivery_slices(ids, _pairs(request), region=request.region):
        statements.deliveries_insert(rows)
    return Published(request.topic, ids, request.messages, request.owed, request.region)


def _fan_out(request: Request) -> Published:
    """The same in several transactions, between which others write."""
    ids = fan_out(
        len(request.messages),
        _pairs(request),
        region=request.region,
        insert_messages=lambda ids: _insert_messages(request, ids),
    )
    return Published(request.topic, ids, request.messages, request.owed, request.region)


def _pairs(request: Request) -> list[tuple[int, Sequence[int]]]:
    return [(one.subscriber.id, one.indices) for one in request.owed]


def _insert_messages(request: Request, ids: Sequence[int]) -> None:
    topic_id, region = request.topic.pk, request.region
    statements.messages_insert(
        [
            (message_id, topic_id, region, message.data, attributes_text(message.attributes), message.ordering_key)
            for message_id, message in zip(ids, request.messages, strict=True)
        ]
    )


@contextmanager
def _large_request() -> Iterator[None]:
    """Take part in storing large requests: one at a time, while a few others may wait.

    They take seconds, and each that waits takes a thread which other publishers need.
    """
    if not _large_requests.acquire(blocking=False):
        raise ResourceExhausted(
            "Too many large publish requests are being stored. Try again, with fewer messages each."
        )
    try:
        with _large_request_turn:
            yield
    finally:
        _large_requests.release()


_large_requests = threading.BoundedSemaphore(max(settings.WEB_THREADS // 2, 1))
_large_request_turn = threading.Lock()
_groups = GroupCommit(_commit, weigh=attrgetter("weight"), most=SLICE_ROWS * 2)


def owed_by(
    subscribers: Sequence[PushSettings], messages: Sequence[NewMessage], *, limit: int | None = None
) -> list[Owed]:
    """Return what each subscription is owed. Each filter is evaluated once, however many subscriptions have it.

    Raises ResourceExhausted for more than `limit` deliveries.
    """
    by_filter: dict[str, Sequence[int]] = {"": range(len(messages))}
    owed, count = [], 0
    for subscriber in subscribers:
        indices = by_filter.get(subscriber.filter)
        if indices is None:
            passes = matcher(subscriber.filter)
            indices = by_filter[subscriber.filter] = [i for i, one in enumerate(messages) if passes(one.attributes)]
        count += len(indices)
        if limit is not None and count > limit:
            raise ResourceExhausted(
                f"The request would make more than {limit} deliveries to the subscriptions of the topic. Publish "
                "fewer messages in one request."
            )
        owed.append(Owed(subscriber, indices))
    return owed


def offer_quietly(ids: Sequence[int], messages: Sequence[NewMessage], *, owed: Sequence[Owed], region: str) -> None:
    """Hand committed messages to Redis; its absence is logged and no reason to fail a publish."""
    try:
        for one in owed:
            if one.subscriber.ordered and one.indices:
                lane_configure(Lane(one.subscriber.id, region), one.subscriber, action="more", from_id=ids[0])
        _offer(ids, messages, owed=[one for one in owed if not one.subscriber.ordered and one.indices], region=region)
    except redis.RedisError as error:
        logger.warning("offer put off until Redis is back: %s", type(error).__name__)


def _offer(ids: Sequence[int], messages: Sequence[NewMessage], *, owed: Sequence[Owed], region: str) -> None:
    if not owed:
        return
    texts = [escaped(_traveller(message_id, message)) for message_id, message in zip(ids, messages, strict=True)]
    names = [str(message_id) for message_id in ids]
    offers, size = [], 0
    for one in owed:
        render = TaskTemplate(subscription_id=one.subscriber.id, region=region, attempt=1).render
        lane = Lane(one.subscriber.id, region)
        for start in range(0, len(one.indices), OFFER_MESSAGES):
            part = one.indices[start : start + OFFER_MESSAGES]
            tasks = [(ids[index], render(names[index], texts[index])) for index in part]
            offers.append(lane_offer(lane, one.subscriber, tasks))
            size += sum(len(text) for _, text in tasks)
            if size >= OFFER_BYTES:
                default_backlog().offer(offers)
                offers, size = [], 0
    if offers:
        default_backlog().offer(offers)


def _traveller(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
