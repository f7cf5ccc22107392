"""The rollup is ready while it keeps counting; a running process is not enough."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from deliveries.models import CountingLease
from deliveries.telemetry.counting import rollup as rollups
from deliveries.telemetry.counting.counter import SegmentCounter
from deliveries.telemetry.counting.lag import FRESH_SECONDS, LAG_SECONDS, Lag, keeps_up, lag_seconds
from deliveries.telemetry.counting.rollup import Rollup, only_runner
from pushhub.runtime import processes
from tests.clocks import Clock


def test_a_rollup_with_nothing_to_count_is_ready(tmp_path: Path) -> None:
    clock = Clock()
    with only_runner(tmp_path):
        assert not keeps_up(tmp_path, clock=clock), "it has not looked for segments yet"
        Lag(tmp_path, clock=clock).write([])
        assert keeps_up(tmp_path, clock=clock)
    assert not keeps_up(tmp_path, clock=clock), "it has ended"


def test_segments_that_wait_without_progress_make_it_unready(tmp_path: Path) -> None:
    """Given a running rollup and a segment that waits, when no batch is counted for a minute, then the rollup is not
    ready. It is ready again after the next batch, however many segments wait.
    """
    clock = Clock()
    lag = Lag(tmp_path, clock=clock)
    with only_runner(tmp_path):
        lag.write(["a", "b"])
        clock.now += LAG_SECONDS - 1
        lag.write(["a", "b", "c"])
        assert keeps_up(tmp_path, clock=clock)
        clock.now += 2
        lag.write(["a", "b", "c"])
        assert lag_seconds(tmp_path, now=clock.now) == LAG_SECONDS + 1
        assert not keeps_up(tmp_path, clock=clock)

        lag.progressed()
        lag.write(["b", "c"])
        assert keeps_up(tmp_path, clock=clock)


def test_a_rollup_that_fails_and_is_started_again_and_again_is_not_ready(tmp_path: Path) -> None:
    """Given one that ends at each batch, when it has been started again for a minute, then it is not ready until it has
    counted one.
    """
    clock = Clock()
    with only_runner(tmp_path):
        for _ in range(3):
            lag = Lag(tmp_path, clock=clock)
            lag.forget()
            lag.write(["a"])
            clock.now += LAG_SECONDS / 2
        Lag(tmp_path, clock=clock).forget()  # this one ends before it writes anything
        lag = Lag(tmp_path, clock=clock)
        lag.write(["a"])
        assert not keeps_up(tmp_path, clock=clock)
        lag.progressed()
        lag.write(["b"])
        assert keeps_up(tmp_path, clock=clock)


def test_a_rollup_that_does_not_report_is_not_ready(tmp_path: Path) -> None:
    clock = Clock()
    lag = Lag(tmp_path, clock=clock)
    with only_runner(tmp_path):
        lag.write([])
        clock.now += FRESH_SECONDS + 1
        assert not keeps_up(tmp_path, clock=clock)
        lag.write([])
        assert keeps_up(tmp_path, clock=clock)
        lag.forget()
        assert not keeps_up(tmp_path, clock=clock)


def test_the_check_of_the_process_includes_its_lag(tmp_path: Path, settings: object) -> None:
    """Given a running rollup that does not count its segments, then `--check` finds it not ready."""
    settings.JOURNAL = str(tmp_path)  # type: ignore[attr-defined]
    clock = Clock()
    lag = Lag(tmp_path, clock=clock)
    with only_runner(tmp_path):
        clock.now = time.time()
        lag.write([])
        assert processes.rollup().is_ready()
        clock.now -= LAG_SECONDS + 1
        lag.write(["a"])
        clock.now = time.time()
        lag.write(["a"])
        assert not processes.rollup().is_ready()


@pytest.mark.django_db(transaction=True)
def test_a_rollup_that_cannot_look_for_segments_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a bucket that cannot be reached, when the rollup reports, then it neither says that nothing waits nor keeps
    the lease, until a look succeeds.
    """

    def fail(_: Any) -> None:
        raise OSError("the bucket is away")

    monkeypatch.setattr(rollups, "REPORT_SECONDS", 0)
    rollup = Rollup(tmp_path, session=None)  # type: ignore[arg-type]
    rollup._lease.take()
    until = CountingLease.objects.get().until
    with monkeypatch.context() as outage:
        outage.setattr(SegmentCounter, "look", fail)
        rollup._try_to_look()
        rollup._report()
        assert (lag_seconds(tmp_path, now=time.time() + 20) or 0) >= 20
        assert CountingLease.objects.get().until == until

    rollup._try_to_look()
    rollup._lease._renewed_at = None
    rollup._report()
    assert lag_seconds(tmp_path, now=time.time() + 20) == 0
    assert CountingLease.objects.get().until > until
