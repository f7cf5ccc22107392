"""Commits publishes together: one thread authorizes, stores and offers whatever has gathered meanwhile.

The servers hand it small requests as they came, if they are well-formed and ask for nothing unusual. A request that
turns out to need more, or that has to be refused, is given back, and takes the way of all other requests: errors,
schemas, message transforms and the audit log have their code there. At the end of that way, on SQLite, a thread hands
its request to the writer as well, which commits it together with the small ones.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import NamedTuple

from django.conf import settings
from django.db import Error, close_old_connections, connections

from deliveries.publish.offering import offer_all
from deliveries.publish.service import charge_requests
from deliveries.publish.storing import BYTES_AS_A_ROW, MAX_GROUP_WEIGHT, Request, commit_requests, committers, owed_by
from deliveries.rules.payload import NewMessage
from deliveries.rules.regions import storage_region
from deliveries.telemetry.events import Published
from pushhub.common.background import IDLE_SECONDS, BackgroundThread
from pushhub.common.errors import PushHubError, ResourceExhausted
from pushhub.common.expiring import ExpiringCache
from pushhub.common.principals import Principal
from subscriptions.iam import access, epoch
from subscriptions.iam.methods import PUBLISH, authorize
from subscriptions.identity.callers import caller_from_authorization
from subscriptions.identity.recent import recent_callers
from subscriptions.models import Topic
from subscriptions.selectors import PushSettings, get_topic, subscriptions_of_topic

logger = logging.getLogger(__name__)

#: Requests that one transaction stores at most.
GROUP_SIZE = 256
#: A request with more deliveries is given back.
MAX_DELIVERIES = 100
#: As is a request for which more filters might have to be evaluated: all publishers would wait for that.
MAX_FILTERED = 1_000
#: Topics that are kept for a second. Beyond that, all are forgotten and read again.
MOST_TOPICS = 1_000
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
    #: The region of publishing, or "" for the server's own.
    region: str
    done: Callable[[list[str] | None], None]


class _Checked(NamedTuple):
    """A request of a thread, which waits for the future: it has what was stored, or None if it is given back."""

    request: Request
    future: Future[Published | None]


#: A topic, the region where messages are stored, and the topic's subscriptions.
_Target = tuple[Topic, str, Sequence[PushSettings]]
#: By the topic's name and the region of a publish.
_Targets = ExpiringCache[tuple[str, str], _Target]

#: A publish with its message ids, or with None if it is given back.
_Answer = tuple[SmallPublish, list[str] | None]


class PublishWriter:
    """The thread, and the queue in front of it. It belongs to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: What came in this round of the event loop; the loop's own.
        self._gathered: list[SmallPublish] = []
        #: What came in a round of the event loop, or from a thread; nothing wakes the thread up to stop.
        self._queue: queue.SimpleQueue[Sequence[SmallPublish | _Checked]] = queue.SimpleQueue()
        #: Taken from the queue and not answered yet; the thread's own.
        self._taken: deque[SmallPublish | _Checked] = deque()
        self._epoch: Sequence[int] = ()
        #: Those of this access epoch; the thread's own.
        self._targets: _Targets = ExpiringCache(seconds=epoch.KEPT_SECONDS, max_entries=MOST_TOPICS)
        #: When the connection is checked next (time.monotonic).
        self._checks_at = 0.0
        self._has_ended = threading.Event()
        self._thread = BackgroundThread("publish writer", self._round, on_error=self._give_back, at_end=self._end)

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

    def commit(self, request: Request) -> Published | None:
        """Commit the request of a thread and return what was stored, or None if it has to be committed alone."""
        checked = _Checked(request, Future())
        self._queue.put([checked])
        while not self._has_ended.is_set():
            with suppress(TimeoutError):
                return checked.future.result(CHECK_SECONDS)
        return checked.future.result() if checked.future.done() else None

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
            published = commit_requests(requests) if (requests := reading.requests()) else []
        except Error as error:
            logger.warning("publishes are given back: %s", error)
            close_old_connections()
            self._give_back()
            return
        for _ in range(reading.taken):
            self._taken.popleft()
        groups = published[: len(reading.groups)]
        for checked, stored in zip(reading.checked, published[len(groups) :], strict=True):
            checked.future.set_result(stored)  # its thread offers it
        answers = reading.answers(groups)
        try:
            offer_all(groups)
        except Error as error:
            logger.warning("publishes are given back, as neither Redis nor the database could be told: %s", error)
            answers = [(publish, None) for publish, _ in answers]
        finally:
            # They are stored, whatever else became of the offer.
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
        taken = list(self._taken)
        self._taken.clear()
        answers: list[_Answer] = []
        for publish in taken:
            if isinstance(publish, _Checked):
                publish.future.set_result(None)
            else:
                answers.append((publish, None))
        self._loop.call_soon_threadsafe(_answer, answers)

    def _end(self) -> None:
        """Leave no thread waiting, even if the event loop did not wait for this end and has closed."""
        try:
            with suppress(queue.Empty):
                while True:
                    self._taken += self._queue.get_nowait()
            self._give_back()
        finally:
            self._has_ended.set()
            connections.close_all()

    def _read(self) -> _Reading:
        """Look at the first of the requests, as many as one transaction should store."""
        self._forget_changed_access()
        reading = _Reading(self._targets)
        for publish in self._taken:
            if not reading.take(publish):
                break
        reading.charge()
        return reading

    def _forget_changed_access(self) -> None:
        """Forget who may do what, and the topics, if any process has changed them."""
        token = epoch.current()
        if token != self._epoch:
            access.forget_decisions()
            recent_callers.clear()
            self._targets.clear()
            self._epoch = token


@contextmanager
def publish_writer(loop: asyncio.AbstractEventLoop) -> Iterator[PublishWriter]:
    """Yield the writer of this event loop for the block. Inside of such a block it is the same one."""
    if loop in _writers:
        yield _writers[loop]
        return
    writer = _writers[loop] = PublishWriter(loop)
    writer.start()
    committers.append(writer.commit)
    try:
        yield writer
    finally:
        committers.remove(writer.commit)
        del _writers[loop]
        writer.stop()


def publish_writer_of(loop: asyncio.AbstractEventLoop) -> PublishWriter | None:
    """Return the writer of an event loop that is inside of `publish_writer`, or None."""
    return _writers.get(loop)


_writers: dict[asyncio.AbstractEventLoop, PublishWriter] = {}


@dataclass(slots=True)
class _Group:
    """Publishes to one topic in one region, stored as one request: most of the work is the same for many messages."""

    topic: Topic
    region: str
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
        return Request(self.topic, self.messages, self.region, owed, publishes=counts)

    def answers(self, ids: Sequence[int]) -> Iterator[_Answer]:
        names = iter(map(str, ids))
        for publish in self.publishes:
            yield publish, list(islice(names, len(publish.messages)))


class _Reading:
    """Sorts publishes by topic and region; what several of them share is read once."""

    def __init__(self, targets: _Targets) -> None:
        self._targets = targets
        #: How many publishes it has taken.
        self.taken = 0
        self.checked: list[_Checked] = []
        self._given_back: list[SmallPublish] = []
        self._weight = 0
        self._allowed: dict[tuple[str | None, str], bool] = {}
        self._groups: dict[tuple[str, str], _Group | None] = {}

    @property
    def groups(self) -> list[_Group]:
        return [group for group in self._groups.values() if group is not None and group.publishes]

    def take(self, publish: SmallPublish | _Checked) -> bool:
        """Take a publish; return False if it is too much for this transaction."""
        if isinstance(publish, _Checked):
            weight, add = publish.request.weight, partial(self.checked.append, publish)
        elif (group := self._group(publish)) is not None and group.takes(publish.messages):
            weight, add = group.weight(publish.messages), partial(group.add, publish)
        else:
            weight, add = 0, partial(self._given_back.append, publish)
        if self._weight and self._weight + weight > MAX_GROUP_WEIGHT:
            return False
        self._weight += weight
        self.taken += 1
        add()
        return True

    def charge(self) -> None:
        """Charge the groups to the quotas. The publishes of one that is over a quota are given back."""
        for group in self.groups:
            try:
                charge_requests(group.topic, [publish.messages for publish in group.publishes])
            except ResourceExhausted:
                self._given_back += group.publishes
                group.publishes.clear()

    def requests(self) -> list[Request]:
        """Return what is to be committed: the groups first."""
        return [group.request() for group in self.groups] + [checked.request for checked in self.checked]

    def answers(self, stored: Sequence[Published]) -> list[_Answer]:
        answers: list[_Answer] = [(publish, None) for publish in self._given_back]
        for group, published in zip(self.groups, stored, strict=True):
            answers += group.answers(published.ids)
        return answers

    def _group(self, publish: SmallPublish) -> _Group | None:
        """Return None for a publish that is to be given back."""
        caller, key = (publish.authorization, publish.topic), (publish.topic, publish.region)
        is_allowed = self._allowed.get(caller)
        if is_allowed is None:
            is_allowed = self._allowed[caller] = _is_allowed(*caller)
        if not is_allowed:
            return None
        if key not in self._groups:
            target = self._targets.get(key)
            if target is None and (target := _read_target(*key)) is not None:
                self._targets.put(key, target)
            self._groups[key] = _Group(*target) if target is not None else None
        return self._groups[key]


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


def _read_target(name: str, region: str) -> _Target | None:
    """Return None for a topic to which a publish needs more than to be stored, or is refused."""
    try:
        topic = get_topic(name=name, field="topic")
        region = storage_region(topic.message_storage_policy, region or settings.REGION, own_region=settings.REGION)
    except PushHubError:
        return None
    if topic.schema_settings or topic.message_transforms:
        return None
    return topic, region, subscriptions_of_topic(topic.pk)


def _answer(answers: Sequence[_Answer]) -> None:
    for publish, ids in answers:
        try:
            publish.done(ids)
        except Exception:
            logger.exception("an answer could not be given")
