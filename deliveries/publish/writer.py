"""Publishes small requests together: one thread authorizes, stores and offers whatever has gathered meanwhile.

The servers hand it requests that are well-formed and ask for nothing unusual. A request that turns out to need more,
or that has to be refused, is given back, and takes the way of all other requests: errors, quotas, schemas and the audit
log have their code there.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from django.conf import settings
from django.db import Error, close_old_connections, connections

from deliveries.publish.offering import offer_all
from deliveries.publish.storing import BYTES_AS_A_ROW, MAX_GROUP_WEIGHT, Request, owed_by, requests_commit
from deliveries.rules.payload import NewMessage
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.errors import PushHubError, ResourceExhausted
from pushhub.common.principals import Principal
from subscriptions.iam import access, epoch
from subscriptions.iam.methods import authorize
from subscriptions.identity.callers import caller_from_authorization
from subscriptions.identity.recent import recent_callers
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings, subscriptions_of_topic, topic_get

logger = logging.getLogger(__name__)

PUBLISH = "google.pubsub.v1.Publisher.Publish"
#: Requests that one transaction stores at most.
GROUP_SIZE = 256
#: A request with more deliveries is given back.
MAX_DELIVERIES = 100
#: As is a request for which more filters might have to be evaluated: all publishers would wait for that.
MAX_FILTERED = 1_000
STOP_SECONDS = 10.0
CHECK_SECONDS = 1.0


class SmallPublish(NamedTuple):
    """A publish request, with its credentials as they came.

    `done` is called in the event loop, with the message ids or with None for a request that is given back.
    """

    #: The value of the Authorization header; None without one.
    authorization: str | None
    topic: str
    messages: Sequence[NewMessage]
    done: Callable[[list[str] | None], None]


#: A publish with its message ids, or with None if it is given back.
_Answer = tuple[SmallPublish, list[str] | None]


class PublishWriter:
    """The thread, and the queue in front of it. It belongs to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: What came in this round of the event loop; the loop's own.
        self._gathered: list[SmallPublish] = []
        #: What came in a round of the event loop; nothing wakes the thread up to stop.
        self._queue: queue.SimpleQueue[list[SmallPublish]] = queue.SimpleQueue()
        #: Taken from the queue and not answered yet; the thread's own.
        self._taken: deque[SmallPublish] = deque()
        self._epoch = 0
        #: When the connection is checked next (time.monotonic).
        self._checks_at = 0.0
        self._thread = BackgroundThread(
            "publish writer", self._round, on_error=self._give_back, at_end=connections.close_all
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Nobody waits for an answer any more."""
        self._thread.stopping.set()
        self._queue.put([])
        self._thread.stop(timeout=STOP_SECONDS)

    def submit(self, publish: SmallPublish) -> None:
        """Take a request, in the event loop. Those of one round are handed over together: the thread wakes up once."""
        if not self._gathered:
            self._loop.call_soon(self._hand_over)
        self._gathered.append(publish)

    def _hand_over(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._queue.put(gathered)

    def _round(self) -> None:
        self._take()
        if not self._taken:
            return
        self._check_connection()
        try:
            reading = self._read()
            requests = [group.request() for group in reading.groups.values()]
            published = requests_commit(requests) if requests else []
        except Error as error:
            logger.warning("small publishes are given back: %s", error)
            close_old_connections()
            self._give_back()
            return
        answers: list[_Answer] = [(publish, None) for publish in reading.given_back]
        for group, stored in zip(reading.groups.values(), published, strict=True):
            answers += group.answers(stored.ids)
        for _ in answers:
            self._taken.popleft()
        try:
            offer_all(published)
        finally:
            # They are stored, whatever became of the offer.
            self._loop.call_soon_threadsafe(_answer, answers)

    def _check_connection(self) -> None:
        """Close a connection that is too old or broken, now and then: on PostgreSQL the check is a query.

        A connection that breaks meanwhile fails one group, which is given back.
        """
        if time.monotonic() >= self._checks_at:
            close_old_connections()
            self._checks_at = time.monotonic() + CHECK_SECONDS

    def _take(self) -> None:
        """Wait for a request, and take all that came with it."""
        with suppress(queue.Empty):
            if not self._taken:
                self._taken += self._queue.get(timeout=IDLE_SECONDS)
            while len(self._taken) < GROUP_SIZE:
                self._taken += self._queue.get_nowait()

    def _give_back(self) -> None:
        answers: list[_Answer] = [(publish, None) for publish in self._taken]
        self._taken.clear()
        self._loop.call_soon_threadsafe(_answer, answers)

    def _read(self) -> _Reading:
        """Look at the first of the requests, as many as one transaction should store."""
        self._forget_changed_access()
        reading = _Reading()
        for publish in self._taken:
            if not reading.take(publish):
                break
        return reading

    def _forget_changed_access(self) -> None:
        """Forget who may do what if another process has changed it."""
        token = epoch.current()
        if token != self._epoch:
            access.forget_decisions()
            recent_callers.clear()
            self._epoch = token


@contextmanager
def publish_writer(loop: asyncio.AbstractEventLoop) -> Iterator[PublishWriter | None]:
    """Yield the writer of this event loop for the block; None if quotas are on, because they charge each request."""
    if settings.QUOTAS:
        yield None
        return
    writer = _writers[loop] = PublishWriter(loop)
    writer.start()
    try:
        yield writer
    finally:
        del _writers[loop]
        writer.stop()


def publish_writer_of(loop: asyncio.AbstractEventLoop) -> PublishWriter | None:
    """Return the writer of an event loop that is inside of `publish_writer`, or None."""
    return _writers.get(loop)


_writers: dict[asyncio.AbstractEventLoop, PublishWriter] = {}


@dataclass(slots=True)
class _Group:
    """Publishes to one topic. They are stored as one request: most of the work is the same for many messages."""

    topic: Topic
    subscribers: Sequence[PushSettings]
    publishes: list[SmallPublish] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)

    def weight(self, messages: Sequence[NewMessage]) -> int:
        """Return how much these messages add to the weight of the request (`Request.weight`), at most."""
        size = sum([len(message.data) for message in messages])
        return len(messages) * (1 + len(self.subscribers)) + size // BYTES_AS_A_ROW

    def takes(self, messages: Sequence[NewMessage]) -> bool:
        """Return whether the messages make no more deliveries than a small publish may."""
        most = len(messages) * len(self.subscribers)
        if most <= MAX_DELIVERIES:
            return True
        if most > MAX_FILTERED:
            return False
        try:
            owed_by(self.subscribers, messages, limit=MAX_DELIVERIES)
        except ResourceExhausted:
            return False
        return True

    def add(self, publish: SmallPublish) -> None:
        self.publishes.append(publish)
        self.messages += publish.messages

    def request(self) -> Request:
        owed = owed_by(self.subscribers, self.messages)
        counts = [len(publish.messages) for publish in self.publishes]
        return Request(self.topic, self.messages, settings.REGION, owed, publishes=counts)

    def answers(self, ids: Sequence[int]) -> Iterator[_Answer]:
        names = iter(map(str, ids))
        for publish in self.publishes:
            yield publish, list(islice(names, len(publish.messages)))


class _Reading:
    """Sorts publishes by topic; what several of them share is read once."""

    def __init__(self) -> None:
        self.given_back: list[SmallPublish] = []
        self.groups: dict[str, _Group] = {}
        self._weight = 0
        self._allowed: dict[tuple[str | None, str], bool] = {}
        self._topics: dict[str, _Group | None] = {}

    def take(self, publish: SmallPublish) -> bool:
        """Take a publish; return False if it is too much for this transaction."""
        group = self._group(publish)
        if group is None or not group.takes(publish.messages):
            self.given_back.append(publish)
            return True
        self._weight += group.weight(publish.messages)
        if self.groups and self._weight > MAX_GROUP_WEIGHT:
            return False
        self.groups[publish.topic] = group
        group.add(publish)
        return True

    def _group(self, publish: SmallPublish) -> _Group | None:
        """Return None for a publish that is to be given back."""
        name, key = publish.topic, (publish.authorization, publish.topic)
        is_allowed = self._allowed.get(key)
        if is_allowed is None:
            is_allowed = self._allowed[key] = _is_allowed(*key)
        if not is_allowed:
            return None
        if name not in self._topics:
            self._topics[name] = _group_of(name)
        return self._topics[name]


def _is_allowed(authorization: str | None, topic: str) -> bool:
    """Return whether the caller may publish to the topic. If not, the usual way of requests reports the error."""
    try:
        if authorization is not None:
            caller = caller_from_authorization(authorization)
        elif settings.ANONYMOUS:
            caller = Principal(settings.ANONYMOUS)
        else:
            return False
        authorize(caller, PUBLISH, {"topic": topic})
    except PushHubError:
        return False
    return True


def _group_of(name: str) -> _Group | None:
    """Return an empty group for a topic; None if a publish to it needs more than to be stored."""
    try:
        topic = topic_get(name=name, field="topic")
    except PushHubError:
        return None
    if topic.schema_settings or topic.message_transforms or topic.message_storage_policy is not None:
        return None
    return _Group(topic, subscriptions_of_topic(topic.pk))


def _answer(answers: Sequence[_Answer]) -> None:
    for publish, ids in answers:
        try:
            publish.done(ids)
        except Exception:
            logger.exception("an answer could not be given")
