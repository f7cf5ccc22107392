"""The base of the background threads: what it survives, how it reports that it is alive, and how it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from pushhub.common import background
from pushhub.common.background import BackgroundThread
from tests.ports import wait_for


class Work:
    """A thread body that counts its rounds and raises the errors that the test gives it."""

    def __init__(self) -> None:
        self.rounds = self.handed_back = self.ends = 0
        self.errors: list[BaseException] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.thread = BackgroundThread("work", self._round, on_error=self._hand_back, at_end=self._end)

    def _round(self) -> None:
        assert self.go_on.wait(timeout=60)
        self.rounds += 1
        if self.errors:
            raise self.errors.pop()
        self.thread.stopping.wait(0.001)

    def _hand_back(self) -> None:
        self.handed_back += 1

    def _end(self) -> None:
        self.ends += 1


@pytest.fixture
def work() -> Iterator[Work]:
    it = Work()
    yield it
    it.go_on.set()
    it.thread.stop(timeout=10)


def test_an_exception_ends_only_the_round(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    work.errors = [RuntimeError("of the test"), ValueError("another")]
    work.thread.start()
    wait_for(lambda: work.rounds > 4, what="rounds after the exceptions")
    assert work.handed_back == 2
    assert "an unexpected error in thread work" in caplog.text
    assert "of the test" in caplog.text


def test_the_end_function_is_called_once_after_the_last_round(work: Work) -> None:
    work.thread.start()
    wait_for(lambda: work.rounds, what="a round")
    work.thread.stop(timeout=10)
    rounds = work.rounds
    assert (work.ends, work.rounds) == (1, rounds)
    assert "work" not in background.stuck_seconds()


def test_a_thread_that_stands_still_is_named(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "STUCK_SECONDS", 0.2)
    work.thread.start()
    wait_for(lambda: work.rounds, what="a round")
    work.go_on.clear()
    wait_for(lambda: "work" in background.threads_stuck(), what="the silence")
    work.go_on.set()
    wait_for(lambda: "work" not in background.threads_stuck(), what="a sign of life")


def test_a_thread_that_is_alive_with_a_job_that_waits_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ages = [background.STUCK_SECONDS + 1]
    thread = BackgroundThread("work", lambda: None, oldest_job=lambda: ages[0])
    thread.start()
    assert background.threads_stuck() == ["work"]
    assert background.oldest_job_seconds() == ages[0]
    ages = [1.0]
    assert background.threads_stuck() == []
    thread.stop(timeout=10)


def test_rounds_that_only_fail_are_no_sign_of_life(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    logging.disable(logging.CRITICAL)
    try:
        monkeypatch.setattr(background, "STUCK_SECONDS", 0.1)
        work.errors = [RuntimeError()] * 5
        work.thread.start()
        wait_for(lambda: "work" in background.threads_stuck(), what="the silence")
        wait_for(lambda: "work" not in background.threads_stuck(), what="a round that succeeds")
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_unasked_ends_the_process(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(background, "end_process", ended.set)
    work.errors = [SystemExit()]
    work.thread.start()
    assert ended.wait(timeout=60)
