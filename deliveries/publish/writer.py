"""Publishes small requests together: one thread authorizes, stores and offers whatever has gathered meanwhile.

The servers hand it requests that are well-formed and ask for nothing unusual. A request that turns out to need more,
or that has to be refused, is given back, and takes the way of all other requests: errors, quotas, schemas and the audit
log have their code there.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from django.conf import settings
from django.db import Error, close_old_connections, connections

from deliveries.publish.offering import offer_all
from deliveries.publish.storing import MAX_GROUP_WEIGHT, Request, owed_by, requests_commit
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
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SmallPublish:
    """A publish request, with its credentials as they came.

    `done` is called in the event loop, with the message ids or with None for a request that is given back.
    """

    #: The value of the Authorization header; None without one.
    authorization: str | None
    topic: str
    messages: Sequence[NewMessage]
    done: Callable[[list[str] | None], None]


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
        close_old_connections()
        try:
            requests = self._read()
            storable = [request for request in requests if request is not None]
            published = requests_commit(storable) if storable else []
        except Error as error:
            logger.warning("small publishes are given back: %s", error)
            self._give_back()
            return
        answers = iter(published)
        ids = [None if request is None else [str(name) for name in next(answers).ids] for request in requests]
        group = [self._taken.popleft() for _ in requests]
        try:
            offer_all(published)
        finally:
            # They are stored, whatever became of the offer.
            self._loop.call_soon_threadsafe(_answer, group, ids)

    def _take(self) -> None:
        """Wait for a request, and take all that came with it."""
        with suppress(queue.Empty):
            if not self._taken:
                self._taken += self._queue.get(timeout=IDLE_SECONDS)
            while len(self._taken) < GROUP_SIZE:
                self._taken += self._queue.get_nowait()

    def _give_back(self) -> None:
        group, self._taken = list(self._taken), deque()
        self._loop.call_soon_threadsafe(_answer, group, [None] * len(group))

    def _read(self) -> list[Request | None]:
        """Return the first of the requests, as many as one transaction should store; None for those to give back."""
        self._forget_changed_access()
        reading = _Reading()
        requests: list[Request | None] = []
        weight = 0
        for publish in self._taken:
            request = reading.request(publish)
            weight += 0 if request is None else request.weight
            if requests and weight > MAX_GROUP_WEIGHT:
                break
            requests.append(request)
        return requests

    def _forget_changed_access(self) -> None:
        """Forget who may do what if another process has changed it."""
        token = epoch.current()
        if token != self._epoch:
            access.forget_decisions()
            recent_callers.clear()
            self._epoch = token


@contextmanager
def publish_writer(loop: asyncio.AbstractEventLoop) -> Iterator[PublishWriter | None]:
    """The writer of this event loop, while the block runs; None where quotas are on, which charge each request."""
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
    """The writer of an event loop inside of `publish_writer`."""
    return _writers.get(loop)


_writers: dict[asyncio.AbstractEventLoop, PublishWriter] = {}


class _Reading:
    """Turns requests into what is to be stored; what several of them share is read once."""

    def __init__(self) -> None:
        self._allowed: dict[tuple[str | None, str], bool] = {}
        self._recipients: dict[str, tuple[Topic, Sequence[PushSettings]] | None] = {}

    def request(self, publish: SmallPublish) -> Request | None:
        """Return None for a request that is to be given back."""
        topic_name, key = publish.topic, (publish.authorization, publish.topic)
        if key not in self._allowed:
            self._allowed[key] = _is_allowed(*key)
        if not self._allowed[key]:
            return None
        if topic_name not in self._recipients:
            self._recipients[topic_name] = _recipients(topic_name)
        recipients = self._recipients[topic_name]
        if recipients is None:
            return None
        topic, subscribers = recipients
        try:
            owed = owed_by(subscribers, publish.messages, limit=MAX_DELIVERIES)
        except ResourceExhausted:
            return None
        return Request(topic, publish.messages, settings.REGION, owed)


def _is_allowed(authorization: str | None, topic: str) -> bool:
    """Whether the caller may publish to the topic. Errors are given by the way of all other requests."""
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


def _recipients(name: str) -> tuple[Topic, Sequence[PushSettings]] | None:
    """The topic and the subscriptions attached to it; None where a publish to it needs more than to be stored."""
    try:
        topic = topic_get(name=name, field="topic")
    except PushHubError:
        return None
    if topic.schema_settings or topic.message_transforms or topic.message_storage_policy is not None:
        return None
    return topic, subscriptions_of_topic(topic.pk)


def _answer(group: Sequence[SmallPublish], ids: Sequence[list[str] | None]) -> None:
    for publish, names in zip(group, ids, strict=True):
        try:
            publish.done(names)
        except Exception:
            logger.exception("an answer could not be given")
