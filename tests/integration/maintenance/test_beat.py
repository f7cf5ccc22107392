"""Any number of beats may run: one sends, and another takes over after it was killed or frozen."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from deliveries.backlog import timed
from pushhub import beat
from pushhub.beat import LeasedScheduler
from tests.leftovers import redis_client
from tests.ports import wait_for
from tests.workers import Worker

LEASE_KEY = "ph:lease:beat"
HOUR_AGO = timedelta(hours=1)
#: A beat that looks often, and sends one task ten times a second.
IMPATIENT = """
from pushhub import beat, celery
beat.LEASE_SECONDS, beat.LOOK_SECONDS = 1.0, 0.1
celery.app.conf.beat_schedule = {"seal": celery.every(0.1, "deliveries.journals_seal")}
"""


class Sender(LeasedScheduler):
    """A scheduler that records what it sends."""

    def __init__(self) -> None:
        app = Celery("test", broker="memory://", set_as_current=False)
        app.conf.beat_schedule = {"sweep": {"task": "sweep", "args": (1,), "schedule": 60.0}}
        super().__init__(app)
        self.sent: list[str] = []
        for entry in self.schedule.values():
            entry.last_run_at = datetime.now(UTC) - HOUR_AGO

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **_: Any) -> None:
        self.sent.append(entry.name)


def test_one_beat_sends_and_the_next_goes_on_where_it_stopped(redis_url: str) -> None:
    # Given two beats, for both of which a task is due
    client = redis_client(redis_url)
    client.zadd(timed.KEY, {"of an older version": 1})
    first, second = Sender(), Sender()
    # When both look, the first sends, and the second does nothing
    assert first.tick() == 0
    assert second.tick() == beat.LOOK_SECONDS
    assert (first.sent, second.sent) == (["sweep"], [])
    # And what was sent is noted as not done yet, if it comes often
    assert client.zrange(timed.KEY, 0, -1) == [b"sweep.1"]
    # When the first ends, the second has the lease, and knows that the task was sent
    first.close()
    assert second.tick() > 0
    assert second.sent == []
    assert second.schedule["sweep"].last_run_at > datetime.now(UTC) - HOUR_AGO
    second.close()


@pytest.mark.parametrize(("every", "is_due"), [(beat.WATCHED_SECONDS, True), (beat.WATCHED_SECONDS + 1, False)])
def test_what_redis_does_not_know_of_is_sent_at_once_unless_it_is_rare(
    redis_url: str, every: float, is_due: bool
) -> None:
    sender = Sender()
    sender.schedule["sweep"].schedule = schedule(every)
    sender.schedule["sweep"].last_run_at = datetime.now(UTC)
    sender.tick()
    assert sender.sent == ["sweep"] * is_due
    sender.close()


def test_a_beat_that_was_frozen_sends_nothing_more(redis_url: str) -> None:
    first, second = Sender(), Sender()
    first.tick()
    redis_client(redis_url).delete(LEASE_KEY)
    second.tick()
    first.schedule["sweep"].last_run_at -= HOUR_AGO
    assert first.tick() == beat.LOOK_SECONDS
    assert first.sent == ["sweep"]
    # Its end doesn't take the lease from the other one either.
    first.close()
    assert redis_client(redis_url).exists(LEASE_KEY)
    second.close()


def test_a_beat_waits_while_redis_is_away_and_then_sends_everything(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender()
    client = beat.redis_client()

    def away(*_: Any) -> None:
        raise redis.ConnectionError

    # Given a Redis that goes away in the midst of sending
    with monkeypatch.context() as patch:
        patch.setattr(client, "hset", away)
        assert sender.tick() == beat.LOOK_SECONDS
    # When it is back and the task is due again, it is sent again
    sender.schedule["sweep"].last_run_at -= HOUR_AGO
    sender.tick()
    assert sender.sent == ["sweep", "sweep"]
    sender.close()


class Beats:
    """Two maintenance workers with a beat each."""

    def __init__(self, redis_url: str, stack: ExitStack) -> None:
        self._client = redis_client(redis_url)
        self.workers = [
            stack.enter_context(
                Worker(redis_url, name=f"maintenance-{name}", queue="maintenance", beat=True, first=IMPATIENT)
            )
            for name in "ab"
        ]
        self.wait_for_sending()

    def holder(self) -> int:
        """Return the process id of the beat that sends, or 0."""
        value = self._client.get(LEASE_KEY)
        return int(value.split(b".")[-2]) if value else 0

    def wait_for_sending(self) -> None:
        before = self._client.hgetall(beat.SENT_KEY)
        wait_for(lambda: self._client.hgetall(beat.SENT_KEY) != before, what="a task of beat")

    def wait_for_other(self, pid: int) -> None:
        wait_for(lambda: self.holder() not in (0, pid), what="another beat")
        self.wait_for_sending()


@pytest.fixture
def beats(transactional_db: None, redis_url: str) -> Iterator[Beats]:
    with ExitStack() as stack:
        yield Beats(redis_url, stack)


def test_another_beat_takes_over_from_a_killed_one(beats: Beats) -> None:
    killed = beats.holder()
    os.kill(killed, signal.SIGKILL)
    beats.wait_for_other(killed)


def test_another_beat_takes_over_from_a_frozen_one_which_then_stays_silent(beats: Beats) -> None:
    frozen = beats.holder()
    os.kill(frozen, signal.SIGSTOP)
    try:
        beats.wait_for_other(frozen)
    finally:
        os.kill(frozen, signal.SIGCONT)
    beats.wait_for_sending()
    assert beats.holder() != frozen


def test_a_worker_says_whether_its_beat_is_alive(beats: Beats) -> None:
    assert "beat" in beats.workers[0].celery("inspect", "threads")
