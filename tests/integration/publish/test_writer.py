"""The writer commits what threads hand it together with small publishes, and gives back what it cannot commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import Error, connection, connections

from deliveries.models import Message
from deliveries.publish import storing, writer
from deliveries.publish.storing import Request, owed_by, store_messages
from deliveries.publish.writer import PublishWriter, SmallPublish, publish_writer
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.events import Published
from subscriptions.models import Topic
from subscriptions.selectors import subscriptions_of_topic
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


class Disk:
    """Records what each transaction commits. The first waits until the test lets it go on."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.groups: list[list[list[bytes]]] = []
        self.fails = False

    def commit(self, requests: Sequence[Request]) -> list[Published]:
        self.groups.append([[message.data for message in request.messages] for request in requests])
        if not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(60)
        if self.fails:
            raise Error("the disk is full")
        return storing.commit_requests(requests)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(writer, "commit_requests", disk.commit)
    return disk


@pytest.fixture
def topic(redis_url: str) -> Topic:
    api = Api()
    api.create("topics/orders")
    api.create("subscriptions/worker", {"topic": TOPIC})
    return Topic.objects.select_related("project").get()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


def request_of(topic: Topic, data: bytes) -> Request:
    messages = [NewMessage(data, {})]
    return Request(topic, messages, "local", owed_by(subscriptions_of_topic(topic.pk), messages))


def run(test: Any) -> None:
    """Run the test with a writer, in the event loop that it belongs to."""

    async def main() -> None:
        with publish_writer(asyncio.get_running_loop()) as running:
            await test(running)

    asyncio.run(main())


def waiting(running: PublishWriter) -> int:
    return running._queue.qsize()


def test_requests_of_threads_and_small_publishes_that_wait_are_committed_together(
    topic: Topic, disk: Disk, threads: ThreadPoolExecutor
) -> None:
    requests = {name: request_of(topic, name) for name in (b"first", b"a", b"b")}

    async def test(running: PublishWriter) -> None:
        loop = asyncio.get_running_loop()
        first = threads.submit(running.commit, requests[b"first"])
        await asyncio.to_thread(disk.entered.wait, 60)
        others = [threads.submit(running.commit, requests[name]) for name in (b"a", b"b")]
        small: list[asyncio.Future[list[str] | None]] = [loop.create_future() for _ in range(2)]
        for number, answer in enumerate(small):
            running.submit(SmallPublish(None, TOPIC, [NewMessage(b"%d" % number, {})], "", answer.set_result))
        await asyncio.to_thread(wait_for, lambda: waiting(running) == 3, what="all requests")
        disk.go_on.set()
        ids = [await answer for answer in small]
        stored = [await asyncio.wrap_future(future) for future in (first, *others)]
        names = [int(name) for answer in ids if answer is not None for name in answer]
        names += [message_id for published in stored if published is not None for message_id in published.ids]
        assert len(set(names)) == 5

    run(test)
    together, *rest = disk.groups[1:]
    assert (disk.groups[0], rest) == ([[b"first"]], [])
    assert sorted(map(sorted, together)) == [[b"0", b"1"], [b"a"], [b"b"]]
    assert Message.objects.count() == 5


def test_requests_that_are_too_much_for_one_transaction_are_committed_in_several(
    topic: Topic, disk: Disk, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_GROUP_WEIGHT", 4)
    requests = [request_of(topic, b"%d" % number) for number in range(4)]

    async def test(running: PublishWriter) -> None:
        futures = [threads.submit(running.commit, requests[0])]
        await asyncio.to_thread(disk.entered.wait, 60)
        futures += [threads.submit(running.commit, request) for request in requests[1:]]
        await asyncio.to_thread(wait_for, lambda: waiting(running) == 3, what="all requests")
        disk.go_on.set()
        await asyncio.gather(*map(asyncio.wrap_future, futures))

    run(test)
    assert [len(group) for group in disk.groups] == [1, 2, 1]


def test_what_cannot_be_committed_together_is_given_back(topic: Topic, disk: Disk, threads: ThreadPoolExecutor) -> None:
    request = request_of(topic, b"a")
    disk.fails = True
    disk.go_on.set()

    async def test(running: PublishWriter) -> None:
        small: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        running.submit(SmallPublish(None, TOPIC, [NewMessage(b"1", {})], "", small.set_result))
        future = threads.submit(running.commit, request)
        assert (await small, await asyncio.wrap_future(future)) == (None, None)

    run(test)
    assert not Message.objects.exists()


def test_a_request_that_cannot_be_stored_fails_alone(
    topic: Topic, disk: Disk, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(requests: Sequence[Request]) -> list[Published]:
        if any(message.data == b"bad" for request in requests for message in request.messages):
            raise Error("the disk is bad")
        return insert(requests)

    def store(data: bytes) -> None:
        try:
            store_messages(topic=topic, messages=[NewMessage(data, {})])
        finally:
            connections.close_all()

    insert, first_request = storing.commit_requests, request_of(topic, b"first")
    monkeypatch.setattr(storing, "commit_requests", commit)

    async def test(running: PublishWriter) -> None:
        first = threads.submit(running.commit, first_request)
        await asyncio.to_thread(disk.entered.wait, 60)
        good = [threads.submit(store, name) for name in (b"a", b"b", b"c")]
        bad = threads.submit(store, b"bad")
        if connection.vendor == "sqlite":
            await asyncio.to_thread(wait_for, lambda: waiting(running) == 4, what="all requests")
        disk.go_on.set()
        await asyncio.gather(*map(asyncio.wrap_future, (first, *good)))
        with pytest.raises(Error, match="the disk is bad"):
            await asyncio.wrap_future(bad)

    run(test)
    assert {bytes(message.data) for message in Message.objects.all()} == {b"first", b"a", b"b", b"c"}


def test_a_thread_does_not_wait_for_a_writer_whose_event_loop_has_closed(
    topic: Topic, disk: Disk, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "STOP_SECONDS", 0.0)
    request = request_of(topic, b"a")
    ended: list[PublishWriter] = []

    async def test(running: PublishWriter) -> None:
        ended.append(running)
        running.submit(SmallPublish(None, TOPIC, [NewMessage(b"first", {})], "", lambda _ids: None))
        await asyncio.to_thread(disk.entered.wait, 60)

    run(test)
    disk.go_on.set()
    ended[0]._thread.stop(60)
    assert threads.submit(ended[0].commit, request).result(60) is None


def test_a_thread_does_not_wait_for_a_writer_that_has_ended(topic: Topic, threads: ThreadPoolExecutor) -> None:
    request = request_of(topic, b"a")
    ended: list[PublishWriter] = []

    async def test(running: PublishWriter) -> None:
        ended.append(running)

    run(test)
    assert threads.submit(ended[0].commit, request).result(60) is None


def test_a_publish_of_which_nobody_could_be_told_is_given_back(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stored, but an answer would let its publisher send the key's next message, which might overtake it."""

    def fail(_: Sequence[Published]) -> None:
        raise Error("neither Redis nor the database answers")

    monkeypatch.setattr(writer, "offer_all", fail)

    async def test(running: PublishWriter) -> None:
        answer: asyncio.Future[list[str] | None] = asyncio.get_running_loop().create_future()
        running.submit(SmallPublish(None, TOPIC, [NewMessage(b"a", {})], "", answer.set_result))
        assert await answer is None

    run(test)
