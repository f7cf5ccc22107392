"""Stores messages, with a row for each subscription that is owed them."""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice

from django.conf import settings
from django.db import Error, IntegrityError, connection

from deliveries.rules.ids import FAN_OUT_NODE, NODE_SIZE, MessageIds
from deliveries.rules.payload import NewMessage, attributes_text
from deliveries.rules.regions import storage_region
from deliveries.store import statements
from deliveries.store.fanout import SLICE_ROWS, delivery_rows, fan_out, slices
from deliveries.store.lostoffers import lanes_untold
from deliveries.store.trial import note_refusal
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.events import Owed, Published
from pushhub.common.errors import ResourceExhausted
from pushhub.common.outages import outage_of
from pushhub.common.tenantpool import step_aside_or_refuse
from subscriptions.models import Topic
from subscriptions.resources.filters import matcher
from subscriptions.selectors import PushSettings, subscriptions_of_topic

#: Two processes that drew the same number meet in the primary key; each try draws anew, so three are plenty.
ID_TRIES = 3

#: Deliveries that one request may make; storing them takes ten seconds on SQLite.
MAX_DELIVERIES = 1_000_000
#: The largest sum of `Request.weight` of requests that are committed together.
MAX_GROUP_WEIGHT = SLICE_ROWS * 2
#: The bytes that SQLite writes in the time of a row.
BYTES_AS_A_ROW = 2_000


def _draw_node() -> int:
    return FAN_OUT_NODE + 1 + secrets.randbelow(NODE_SIZE - 1)


_message_ids = MessageIds(node=_draw_node())


def take_message_ids(count: int) -> list[int]:
    return _message_ids.take(count, now_ms=time.time_ns() // 1_000_000)


# Forks of one process would meet at every id.
os.register_at_fork(after_in_child=lambda: _message_ids.renumber(node=_draw_node()))


def store_messages(
    *, topic: Topic, messages: Sequence[NewMessage], region: str = "", only: int | None = None
) -> Published:
    """Store messages and their deliveries, in the caller's transaction or one of their own, without offering them.

    `only` is the primary key of the one subscription that is owed them, where not all are. Raises FailedPrecondition in
    a region that the topic excludes, and ResourceExhausted for more deliveries than one request may make, and for a
    large request while too many others wait.
    """
    region = storage_region(topic.message_storage_policy, region or settings.REGION, own_region=settings.REGION)
    # Read after the call began, the list has each subscription whose create call was answered before that.
    subscribers = [subscriber for subscriber in subscriptions_of_topic(topic.pk) if only in (None, subscriber.id)]
    if connection.in_atomic_block:
        return commit_requests([Request(topic, messages, region, owed_by(subscribers, messages))])[0]
    request = Request(topic, messages, region, owed_by(subscribers, messages, limit=MAX_DELIVERIES))
    if request.deliveries > SLICE_ROWS:
        step_aside_or_refuse()
        with _large_request_lock:
            return _fan_out(request) if connection.vendor == "sqlite" else commit_requests([request])[0]
    # PostgreSQL groups commits itself.
    commit = committers[-1] if committers and connection.vendor == "sqlite" else None
    published = commit(request) if commit is not None else None
    return published or commit_requests([request])[0]


@dataclass(frozen=True, slots=True)
class Request:
    """Messages to store, and the subscriptions that are owed them."""

    topic: Topic
    messages: Sequence[NewMessage]
    region: str
    owed: Sequence[Owed]
    #: The messages of each publish request, if there were several.
    publishes: Sequence[int] = ()

    @property
    def deliveries(self) -> int:
        return sum(len(owed.indices) for owed in self.owed)

    @property
    def weight(self) -> int:
        """The time that storing the request takes, in rows. BYTES_AS_A_ROW take as long as a row."""
        size = sum(len(message.data) for message in self.messages)
        return self.deliveries + len(self.messages) + size // BYTES_AS_A_ROW

    def ordered_lanes(self) -> list[tuple[int, str]]:
        """Return the ordered subscriptions that are owed messages, by primary key, and the region."""
        return [(owed.subscriber.id, self.region) for owed in self.owed if owed.subscriber.ordered and owed.indices]

    def recipients(self) -> list[tuple[int, Sequence[int]]]:
        """Return pairs of a subscription's primary key and the indices of its messages."""
        return [(owed.subscriber.id, owed.indices) for owed in self.owed]


def commit_requests(requests: Sequence[Request]) -> list[Published]:
    """Insert the messages and deliveries of all requests in one transaction, under new ids."""
    attempt = 1
    while True:
        try:
            with _transaction(requests):
                published = _insert(requests)
            note_refusal(None)
            return published
        except IntegrityError:
            _message_ids.renumber(node=_draw_node())
            if attempt == ID_TRIES:
                raise
            attempt += 1
        except Error as error:
            if cause := outage_of(error):
                note_refusal(cause)
            raise


def _transaction(requests: Sequence[Request]) -> AbstractContextManager[None]:
    """Return the transaction to insert requests in. What PostgreSQL inserts by one statement needs none."""
    is_one_statement = connection.vendor == "postgresql" and _are_one_slice(requests)
    return nullcontext() if is_one_statement and not connection.in_atomic_block else write_transaction()


def _are_one_slice(requests: Sequence[Request]) -> bool:
    return sum(request.deliveries for request in requests) <= SLICE_ROWS


def _insert(requests: Sequence[Request]) -> list[Published]:
    published = [
        Published(request.topic, ids, request.messages, request.owed, request.region, request.publishes, befores)
        for request, (ids, befores) in zip(requests, _draw_ids(requests), strict=True)
    ]
    messages = [
        row for request, stored in zip(requests, published, strict=True) for row in _message_rows(request, stored.ids)
    ]
    deliveries = (
        row
        for request, stored in zip(requests, published, strict=True)
        for row in delivery_rows(stored.ids, request.recipients(), region=request.region)
    )
    if _are_one_slice(requests):
        statements.insert_messages_with(messages, list(deliveries))
        return published
    statements.insert_messages(messages)
    for rows in slices(deliveries):
        statements.insert_deliveries(rows)
    return published


def _draw_ids(requests: Sequence[Request]) -> list[tuple[list[int], list[int]]]:
    """Return the ids of each request's messages, and the id before each in its ordering key, or 0.

    Those of a key come after all that wait: its last message may have been published by a process whose clock is ahead,
    or was before it restarted. A request that an ordered lane is owed which was not told of an earlier message gets
    none of the ids before: that message may be one of the key without being the last.
    """
    drawn = iter(take_message_ids(sum(len(request.messages) for request in requests)))
    ids = [list(islice(drawn, len(request.messages))) for request in requests]
    befores = [[0] * len(request.messages) for request in requests]
    places: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for number, request in enumerate(requests):
        for index, message in enumerate(request.messages):
            if message.ordering_key:
                places[request.topic.pk, message.ordering_key].append((number, index))
    lanes = [request.ordered_lanes() if places else [] for request in requests]
    owed = sorted({subscription_id for subscription_id, _ in chain.from_iterable(lanes)})
    last = statements.last_of_keys(list(places), owed=owed)
    for key, its_places in places.items():
        last_id = last.ids.get(key, 0)
        number, index = its_places[0]
        if last_id >= ids[number][index]:
            after = _message_ids.take_after(last_id, len(its_places), dice=random.random())  # noqa: S311 - jitter
            for (number, index), message_id in zip(its_places, after, strict=True):
                ids[number][index] = message_id
        for number, index in its_places:
            befores[number][index], last_id = last_id, ids[number][index]
    untold = lanes_untold(set(chain.from_iterable(lanes))) if last.is_untold else set()
    befores = [[] if untold.intersection(its) else known for its, known in zip(lanes, befores, strict=True)]
    return list(zip(ids, befores, strict=True))


def _fan_out(request: Request) -> Published:
    """Store a request in several transactions, between which others write."""
    keys = {(request.topic.pk, message.ordering_key) for message in request.messages if message.ordering_key}
    ids = fan_out(
        len(request.messages),
        request.recipients(),
        region=request.region,
        after=max(statements.last_of_keys(list(keys)).ids.values(), default=0),
        insert_messages=lambda ids: statements.insert_messages(_message_rows(request, ids)),
    )
    return Published(request.topic, ids, request.messages, request.owed, request.region)


def _message_rows(request: Request, ids: Sequence[int]) -> list[statements.MessageRow]:
    topic_id, region = request.topic.pk, request.region
    return [
        (message_id, topic_id, region, message.data, attributes_text(message.attributes), message.ordering_key)
        for message_id, message in zip(ids, request.messages, strict=True)
    ]


#: Large requests take seconds, so one is stored at a time.
_large_request_lock = threading.Lock()

#: Commits a request together with those of other threads, or returns None: then it has to be committed alone. The last
#: one of the list does.
Committer = Callable[[Request], Published | None]
committers: list[Committer] = []


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
            indices = [index for index, message in enumerate(messages) if passes(message.attributes)]
            by_filter[subscriber.filter] = indices
        count += len(indices)
        if limit is not None and count > limit:
            raise ResourceExhausted(
                f"The request would make more than {limit} deliveries to the subscriptions of the topic. Publish "
                "fewer messages in one request."
            )
        owed.append(Owed(subscriber, indices))
    return owed
