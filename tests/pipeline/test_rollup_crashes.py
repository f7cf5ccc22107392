"""The rollup as a process of its own that is killed again and again, and what the metrics are in the end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from deliveries.models import Segment
from deliveries.pipeline import needs
from deliveries.pipeline.counting.rollup import CHECKPOINT, only_runner
from tests.pipeline.ground import segments_make
from tests.pipeline.test_rollup import assert_counted
from tests.ports import wait_for
from tests.workers import ROOT, database_url

pytestmark = pytest.mark.django_db(transaction=True)

LIFE_SECONDS = 120
POINTS = ("before", "inside", "after", "random")
#: A life counts them in two batches. Each life costs Java's start and its first batches: some 15 s of CPU.
SEGMENTS_A_LIFE = 4


class Life:
    """One process on the folder; `end` waits for it and says how it ended."""

    def __init__(self, folder: Path, *arguments: str, point: str = "never", batch: int = 0) -> None:
        env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "pushhub.settings",
            "PUSHHUB_DATABASE_URL": database_url(),
            "PUSHHUB_JOURNAL": str(folder),
            "PUSHHUB_SPARK_MASTER": "local[2]",
        }
        command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.crashing", point, str(batch), *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)

    def terminate(self) -> None:
        self._process.terminate()

    def end(self) -> tuple[int, str]:
        try:
            _, errors = self._process.communicate(timeout=LIFE_SECONDS)
        finally:
            self._process.kill()
        return self._process.returncode, errors


@pytest.fixture(autouse=True)
def _spark() -> None:
    if missing := needs.missing():
        pytest.skip(missing)


def test_crashes_change_nothing(tmp_path: Path) -> None:
    """Given a rollup that is killed at each of its moments and at random ones, whose checkpoint is deleted once and
    beside which a backfill runs, while segments go on to come late and in disorder, then in the end each segment is
    counted once.
    """
    dice = random.Random(20261121)
    numbers = list(range(len(POINTS) * SEGMENTS_A_LIFE))
    dice.shuffle(numbers)
    paths: list[Path] = []
    for life, point in enumerate(POINTS):
        new = numbers[life * SEGMENTS_A_LIFE : (life + 1) * SEGMENTS_A_LIFE]
        paths += segments_make(tmp_path, new, seed=10, count=10)
        if life == 3:
            shutil.rmtree(tmp_path / CHECKPOINT)
        chosen = f"{dice.uniform(0, 0.3):.3f}" if point == "random" else point
        crashing = Life(tmp_path, "rollup", "--once", point=chosen, batch=dice.choice([1, 2]))
        beside = [Life(tmp_path, "backfill", "--from", "2026-11-20", "--to", "2026-11-22")] if life == 2 else []
        code, errors = crashing.end()
        assert code == -signal.SIGKILL or beside or point == "random", errors
        assert all(one.end()[0] == 0 for one in beside)

    code, errors = Life(tmp_path, "rollup", "--once").end()

    assert code == 0, errors
    assert_counted(paths)


def test_a_rollup_that_is_told_to_stop_says_nothing(tmp_path: Path) -> None:
    """Given a rollup that has counted, when it gets SIGTERM, then it ends with status 0 and without a trace."""
    segments_make(tmp_path, range(2), seed=12, count=10)
    life = Life(tmp_path, "rollup")
    try:
        wait_for(lambda: Segment.objects.count() == 2, timeout_seconds=3 * LIFE_SECONDS, what="the first batch")
    finally:
        life.terminate()
        code, errors = life.end()

    # Java's own word on a module that Spark asks for.
    said = [line for line in errors.splitlines() if "Using incubator modules" not in line]
    assert (code, said) == (0, [])


def test_a_second_runner_is_refused(tmp_path: Path, settings: object) -> None:
    """Given a rollup that runs, when another is started on the same folder, then it says so and counts nothing."""
    settings.JOURNAL = str(tmp_path)  # type: ignore[attr-defined]
    with only_runner(tmp_path), pytest.raises(CommandError, match="another rollup runs on"):
        call_command("pipeline", "rollup", "--once")
    assert not Segment.objects.exists()


def test_without_a_journal_there_is_nothing_to_count() -> None:
    with pytest.raises(CommandError, match="PUSHHUB_JOURNAL is off"):
        call_command("pipeline", "rollup", "--once")
