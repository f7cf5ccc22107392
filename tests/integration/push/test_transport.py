"""The worker's channel between two replies of Redis: when it fetches again, when it sleeps, and what wakes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection
from kombu.asynchronous import Hub

from deliveries.backlog.workerverbs import Fetched
from deliveries.push.transport import Channel, Transport, _Fetch

ASKED = _Fetch("local", "1", 10)


class Worker:
    """Stands in for the push worker."""

    name = "push@test:1:a"
    adopted: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.rung: list[str] = []

    def fetched(self, batch: str, messages: list[bytes], *, epoch: int, pages: list[bytes], cell: int = 0) -> None:
        """Ignore the reply."""

    def delivered(self) -> None:
        """Ignore the end of the reply."""

    def take(self, message: dict[str, Any]) -> bool:
        raise AssertionError

    def take_delivery(self, task_id: str, body: str) -> bool:
        raise AssertionError

    def sort_in(self, region: str, message: bytes) -> None:
        raise AssertionError

    def room(self) -> int:
        raise AssertionError

    def fetch(self, region: str, cell: int, *, room: int, is_own: bool) -> tuple[str, Fetched]:
        raise AssertionError

    def look(self, region: str, *, is_own: bool) -> list[Fetched]:
        raise AssertionError

    def ring(self, region: str, *, cell: int) -> None:
        self.rung.append(region)


@pytest.fixture
def hub() -> Iterator[Hub]:
    it = Hub()
    yield it
    it.close()


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def channel(redis_url: str, hub: Hub, worker: Worker) -> Iterator[Any]:
    with Connection(transport=Transport) as connection:
        channel = connection.default_channel
        assert isinstance(channel, Channel)
        channel.connection.loop = hub
        channel.connection.fetcher = worker
        channel._regions = ["local"]
        yield channel


def reply(channel: Any, worker: Worker, *, wait_ms: int) -> None:
    channel._deliver_batch(worker, ASKED, Fetched([], wait_ms, 0, []))


def test_the_channel_asks_again_at_once_while_more_lanes_are_due(channel: Any, worker: Worker, hub: Hub) -> None:
    reply(channel, worker, wait_ms=0)
    assert channel._quiet == set()
    assert not hub.timer._queue


def test_the_channel_sleeps_until_the_next_lane_is_due(channel: Any, worker: Worker, hub: Hub) -> None:
    reply(channel, worker, wait_ms=50)
    assert channel._quiet == {"local"}
    while not worker.rung:
        hub.run_once()
    assert worker.rung == ["local"]


def test_the_channel_asks_for_the_regions_that_the_worker_has_adopted_too(channel: Any, worker: Worker) -> None:
    reply(channel, worker, wait_ms=-1)
    assert channel._quiet.issuperset(channel._served)
    worker.adopted = ("local", "europe")
    assert channel._served == ["local", "europe"]
    assert not channel._quiet.issuperset(channel._served)


def test_a_closed_channel_does_not_ring(channel: Any, worker: Worker, hub: Hub) -> None:
    """This happens after an outage of Redis, when Celery consumes through a new channel."""
    reply(channel, worker, wait_ms=50)
    channel.close()
    assert [timer.entry.canceled for timer in hub.timer._queue] == [True]
    channel._ring()
    assert worker.rung == []
