"""Offers stored messages to Redis: a task message for each delivery, appended to the backlog of its lane."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import redis

from deliveries.backlog.backlog import Lane, Offer
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configure, lane_offer
from deliveries.counters import recording
from deliveries.journal import records
from deliveries.rules.envelope import traceparent_of
from deliveries.rules.ids import publish_time_ms
from deliveries.rules.payload import NewMessage, publish_time_text, wire_message
from deliveries.rules.taskmessage import TaskTemplate, escaped, reference
from pushhub.common import tracing
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings

logger = logging.getLogger(__name__)

#: Task messages that one call of a script appends, during which Redis answers nobody else.
OFFER_MESSAGES = 250
#: Bytes of task messages that are sent to Redis in one round trip.
OFFER_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Owed:
    """The messages of a request that one subscription is owed, as indices; the others count as acknowledged."""

    subscriber: PushSettings
    indices: Sequence[int]


@dataclass(frozen=True, slots=True)
class Published:
    """Messages that were stored together, and who is owed them."""

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

    The absence of Redis is logged and no reason to fail a publish: the reconciler finds the deliveries later.
    """
    for request in requests:
        records.published(
            topic=request.topic,
            ids=request.ids,
            messages=request.messages,
            region=request.region,
            publishes=request.publishes,
        )
        recording.filtered_count(
            {
                owed.subscriber.id: len(request.ids) - len(owed.indices)
                for owed in request.owed
                if owed.subscriber.filter and len(owed.indices) < len(request.ids)
            }
        )
    try:
        _point_out_ordered(requests)
        _offer(requests)
    except redis.RedisError as error:
        logger.warning("offer put off until Redis is back: %s", type(error).__name__)
    if tracing.is_on():
        tracing.spans_add(span for request in requests for span in _spans(request))


def _spans(request: Published) -> Iterator[tracing.Span]:
    """Return a span for each message of a request that its publisher traces, until it is stored and offered."""
    now = time.time()
    for message_id, message in zip(request.ids, request.messages, strict=True):
        traceparent = traceparent_of(message.attributes)
        trace = tracing.context_parse(traceparent) if traceparent else None
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


def _point_out_ordered(requests: Iterable[Published]) -> None:
    """Tell each ordered lane from which message on to read the database, where it finds the order of its keys."""
    first_ids: dict[Lane, tuple[int, PushSettings]] = {}
    for request in requests:
        for owed in request.owed:
            if owed.subscriber.ordered and owed.indices:
                first_ids.setdefault(Lane(owed.subscriber.id, request.region), (request.ids[0], owed.subscriber))
    for lane, (first_id, subscriber) in first_ids.items():
        lane_configure(lane, subscriber, action="more", from_id=first_id)


def _offer(requests: Iterable[Published]) -> None:
    batch = _Batch()
    for request in requests:
        recipients = [owed for owed in request.owed if owed.indices and not owed.subscriber.ordered]
        if not recipients:
            continue
        pairs = zip(request.ids, request.messages, strict=True)
        texts = [escaped(_task_message(message_id, message)) for message_id, message in pairs]
        for owed in recipients:
            for start in range(0, len(owed.indices), OFFER_MESSAGES):
                batch.add(request, owed.subscriber, owed.indices[start : start + OFFER_MESSAGES], texts)
                if batch.size >= OFFER_BYTES:
                    batch.send()
    batch.send()


class _Batch:
    """The task messages of one round trip, by lane."""

    def __init__(self) -> None:
        self.size = 0
        self._tasks: dict[Lane, list[tuple[int, str]]] = {}
        self._lanes: dict[Lane, tuple[PushSettings, TaskTemplate]] = {}

    def add(self, request: Published, subscriber: PushSettings, indices: Sequence[int], texts: Sequence[str]) -> None:
        lane = Lane(subscriber.id, request.region)
        if lane not in self._lanes:
            template = TaskTemplate(subscription_id=lane.subscription_id, region=lane.region, attempt=1)
            self._lanes[lane] = subscriber, template
            self._tasks[lane] = []
        render = self._lanes[lane][1].render
        tasks = [(request.ids[index], render(str(request.ids[index]), texts[index])) for index in indices]
        self._tasks[lane] += tasks
        self.size += sum(len(text) for _, text in tasks)

    def send(self) -> None:
        if self._tasks:
            default_backlog().offer(self._offers())
        self._tasks, self._lanes, self.size = {}, {}, 0

    def _offers(self) -> list[Offer]:
        return [
            lane_offer(lane, self._lanes[lane][0], tasks[start : start + OFFER_MESSAGES])
            for lane, tasks in self._tasks.items()
            for start in range(0, len(tasks), OFFER_MESSAGES)
        ]


def _task_message(message_id: int, message: NewMessage) -> dict[str, object]:
    if message.is_large:
        return dict(reference(message_id))
    return wire_message(
        message_id, message.data, message.attributes, message.ordering_key, publish_time=publish_time_text(message_id)
    )
