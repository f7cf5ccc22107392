"""Spark and the embedded counter take the lease from each other while segments come: no batch of either fails."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from deliveries.models import CountingLease, Segment
from deliveries.telemetry.counting.embedded import EmbeddedCounter
from deliveries.telemetry.counting.rollup import Rollup
from deliveries.telemetry.counting.segments import QUARANTINE
from deliveries.telemetry.journal import shipping
from tests.pipeline.ground import TRIALS, assert_counted, make_segments
from tests.ports import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.django_db(transaction=True)

#: New segments of a round, which both counters find.
SEGMENTS = 4


class BusyRollup(Rollup):
    """Once it has the lease, more segments come, which it counts unless it takes so long that the lease ends."""

    def __init__(self, folder: Path, *, session: SparkSession, add: Callable[[], object]) -> None:
        super().__init__(folder, session=session)
        self._add = add

    def _begin(self) -> None:
        super()._begin()
        self._add()


@contextmanager
def repeated(call: Callable[[], object]) -> Iterator[None]:
    """Call a function again and again, in a thread of its own, until the block is over. Raises its error."""
    is_over = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            while not is_over.is_set():
                call()
        except Exception as error:
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    for error in failures:
        raise error


def is_embedded() -> bool:
    return CountingLease.objects.filter(counter=CountingLease.Counter.EMBEDDED).exists()


def counted_by() -> set[str]:
    return set(Segment.objects.values_list("job", flat=True))


@pytest.mark.parametrize(("rounds", "is_bucket"), [(5 * TRIALS, False), (3 * TRIALS, True)], ids=["folder", "bucket"])
def test_handovers_under_load_are_without_one_failed_batch(
    spark: SparkSession, tmp_path: Path, settings: Any, caplog: pytest.LogCaptureFixture, rounds: int, is_bucket: bool
) -> None:
    """Given an embedded counter that never rests, when Spark starts in the midst of its turns, counts and ends, then
    each segment is counted once, and neither has met a file that the other one had taken.

    In each round Spark takes the lease from the embedded counter, and that one takes it back: a hundred hand-overs on a
    folder with TRIALS=10.
    """
    caplog.set_level(logging.INFO)
    folder = tmp_path / "journal"
    settings.JOURNAL = str(folder)
    settings.JOURNAL_BUCKET = str(tmp_path / "bucket") if is_bucket else ""
    counter = EmbeddedCounter(folder)
    counter.turn()
    paths: list[Path] = []

    def add(numbers: Iterable[int]) -> None:
        make_segments(folder, numbers, seed=7, count=3)
        if is_bucket:
            shipping.ship(folder)

    for number in range(rounds):
        new = range(SEGMENTS * number, SEGMENTS * (number + 1))
        with repeated(counter.turn):
            wait_for(is_embedded, what="the embedded counter")
            add(new[: SEGMENTS // 2])
            if not number:
                wait_for(counted_by, what="the embedded counter's first segment")
            BusyRollup(folder, session=spark, add=partial(add, new[SEGMENTS // 2 :])).once()
            wait_for(is_embedded, what="the embedded counter's next turn")
        paths += make_segments(tmp_path / "copies", new, seed=7, count=3)

    assert_counted(paths)
    assert not Segment.objects.exclude(state="counted").exists()
    assert not (folder / QUARANTINE).exists()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    taken = Counter(record.getMessage() for record in caplog.records)
    assert taken["attempts are counted by Spark"] == rounds
    assert taken["attempts are counted by the embedded counter"] >= rounds
    assert counted_by() == {"rollup", "embedded"}
