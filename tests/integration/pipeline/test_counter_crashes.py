"""A counter is killed at each critical moment of a transaction, and in the end each segment is counted once."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from deliveries.models import MetricMinute, Segment
from deliveries.telemetry.counting.embedded import EmbeddedCounter
from tests import preloaded
from tests.pipeline.crashing import count_embedded
from tests.pipeline.ground import assert_counted, make_segments, truth_of
from tests.workers import database_url

pytestmark = pytest.mark.django_db(transaction=True)

PROCESS_SECONDS = 120


@pytest.fixture(autouse=True, scope="module")
def forkserver() -> None:
    """Start the process from which the counters are forked; it stays for other tests."""
    preloaded.start()


def count_and_die(folder: Path, point: str, number: int) -> int:
    """Count in a process that dies at a point of the ledger's `number`-th transaction; return its exit code."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PUSHHUB_DATABASE_URL": database_url(),
        "PUSHHUB_SECRET_KEY": "x",
    }
    process = multiprocessing.get_context("forkserver").Process(
        target=count_embedded, args=(dict(environment), str(folder), point, number)
    )
    process.start()
    process.join(PROCESS_SECONDS)
    assert process.exitcode is not None
    code = process.exitcode
    process.close()
    return code


def test_segments_are_counted_once_despite_crashes(tmp_path: Path) -> None:
    """Given a counter that is killed before and after the commit of a first and of a later transaction, while late and
    disordered segments keep coming, then in the end each segment is counted once.
    """
    paths: list[Path] = []
    crashes = [(point, number) for number in (1, 3) for point in ("inside", "after")]
    for turn, (point, number) in enumerate(crashes):
        paths += make_segments(tmp_path, [len(crashes) - turn, 100 + turn], seed=20, count=10)
        assert count_and_die(tmp_path, point, number) == -signal.SIGKILL, (point, number)

    assert Segment.objects.filter(state="counting").exists(), "the last process left segments that are partly counted"
    assert EmbeddedCounter(tmp_path).turn() > 0

    assert_counted(paths)


def test_a_partly_counted_segment_is_continued_in_another_batch(tmp_path: Path) -> None:
    """Given a batch of which some transactions were committed, when its segments are counted in other batches, then
    sums that were added before are not added again.
    """
    paths = make_segments(tmp_path, range(4), seed=21, count=10)
    assert count_and_die(tmp_path, "after", 2) == -signal.SIGKILL
    added = sum(row.count for row in MetricMinute.objects.all())
    assert 0 < added < sum(values[0] for values in truth_of(paths, seconds=60).values())
    hidden = paths[0].with_name(f".{paths[0].name}")
    paths[0].rename(hidden)
    paths += make_segments(tmp_path, range(4, 7), seed=21, count=10)

    EmbeddedCounter(tmp_path).turn()
    hidden.rename(paths[0])
    EmbeddedCounter(tmp_path).turn()

    assert_counted(paths)
