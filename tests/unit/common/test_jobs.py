"""Jobs: owners take turns, a job that is put again replaces the one that waits, and outages are waited out."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from pushhub.common import background
from pushhub.common import jobs as module
from pushhub.common.background import oldest_job_seconds
from pushhub.common.jobs import Jobs
from tests.clocks import Clock
from tests.ports import wait_for


class Gate:
    """A job that runs until it is opened."""

    def __init__(self) -> None:
        self.is_reached, self._opened = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.is_reached.set()
        assert self._opened.wait(timeout=600)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
def gate() -> Iterator[Gate]:
    it = Gate()
    yield it
    it.open()


@pytest.fixture
def jobs(clock: Clock, gate: Gate) -> Iterator[Jobs]:
    """Jobs of one thread, which runs none before the gate opens."""
    it = Jobs("jobs", clock=clock)
    it.start()
    it.put("gate", "gate", gate)
    assert gate.is_reached.wait(timeout=600)
    yield it
    gate.open()
    it.stop()


def test_owners_take_turns(jobs: Jobs, gate: Gate) -> None:
    done: list[str] = []
    for name in ("a1", "a2", "a3", "b1", "a4", "c1"):
        jobs.put(name[0], name, lambda name=name: done.append(name))  # type: ignore[misc]
    gate.open()
    wait_for(lambda: len(done) == 6, what="all jobs")
    assert done == ["a1", "b1", "c1", "a2", "a3", "a4"]


def test_a_job_that_is_put_again_replaces_the_one_that_waits_and_keeps_its_place(jobs: Jobs, gate: Gate) -> None:
    done: list[str] = []
    for name in ("first", "second", "third"):
        jobs.put("a", "page", lambda name=name: done.append(name))  # type: ignore[misc]
        jobs.put("a", name, lambda: done.append("other"))
    gate.open()
    wait_for(lambda: len(done) == 4, what="all jobs")
    assert done == ["third", "other", "other", "other"]


def test_one_owners_jobs_leave_a_thread_to_the_others(gate: Gate, clock: Clock) -> None:
    done = threading.Event()
    jobs = Jobs("jobs", threads=2, clock=clock)
    jobs.start()
    for number in range(10):
        jobs.put("slow", number, gate)
    assert gate.is_reached.wait(timeout=600)
    jobs.put("other", "job", done.set)
    assert done.wait(timeout=600)
    gate.open()
    jobs.stop()


def test_the_age_of_the_oldest_job_is_that_of_its_first_request(jobs: Jobs, gate: Gate, clock: Clock) -> None:
    # Given a job that waits behind another owner's, and was put twice
    last = Gate()
    clock.now = 10.0
    jobs.put("gate", "page", lambda: None)
    clock.now = 20.0
    jobs.put("last", "gate", last)
    jobs.put("gate", "page", lambda: None)
    clock.now = 30.0
    # Then the oldest is first the one that runs
    assert jobs.oldest_seconds() == 30.0
    assert oldest_job_seconds() == 30.0, "the process reports another age"
    # And then the one that waits
    gate.open()
    assert last.is_reached.wait(timeout=600)
    assert jobs.oldest_seconds() == 20.0
    last.open()
    wait_for(lambda: jobs.oldest_seconds() == 0.0, what="the end of all jobs")


def test_a_job_is_repeated_while_redis_is_away_and_another_error_ends_it(
    jobs: Jobs, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.001)
    errors: list[Exception] = [redis.ConnectionError("away"), redis.ConnectionError("away"), ValueError("a fault")]
    done = threading.Event()

    def fail() -> None:
        raise errors.pop(0)

    jobs.put("a", "fails", fail)
    jobs.put("b", "job", done.set)
    gate.open()
    assert done.wait(timeout=600)
    assert not errors
    assert "a fault" in caplog.text


def test_the_end_does_not_wait_for_what_is_away(gate: Gate) -> None:
    reached = threading.Event()

    def fail() -> None:
        reached.set()
        raise redis.ConnectionError("away")

    jobs = Jobs("jobs")
    jobs.start()
    jobs.put("a", "fails", fail)
    assert reached.wait(timeout=600)
    jobs.stop()
    assert jobs.oldest_seconds() == 0.0


def test_jobs_that_wait_for_an_outage_make_no_thread_stuck(jobs: Jobs, clock: Clock, gate: Gate) -> None:
    """Given Redis that is away, when a job has waited for long, then its age is known and its thread is not stuck."""
    is_away, failed = threading.Event(), threading.Event()
    is_away.set()

    def job() -> None:
        if is_away.is_set():
            failed.set()
            raise redis.ConnectionError

    jobs.put("owner", "key", job)
    gate.open()
    assert failed.wait(timeout=600)
    clock.now = 1_000.0
    wait_for(lambda: background.threads_stuck() == [], what="the note of the outage")
    assert background.oldest_job_seconds() >= 1_000
    is_away.clear()
    wait_for(lambda: background.oldest_job_seconds() == 0, what="the job's end")
    assert not background._waiting_out
