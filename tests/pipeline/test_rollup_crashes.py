"""The rollup as a process of its own that is killed, started again and told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from deliveries.models import Segment
from deliveries.telemetry.counting.rollup import only_runner
from tests.pipeline.crashing import KEYS_A_TRANSACTION
from tests.pipeline.ground import assert_counted, make_segments, truth_of
from tests.ports import wait_for
from tests.workers import ROOT, command_environment

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("needs_spark")]

#: Generous: the machine may be busy.
PROCESS_SECONDS = 600


class RollupProcess:
    """A rollup process on the folder. `end` waits for it and returns its status and errors."""

    def __init__(self, folder: Path, *arguments: str, point: str = "never", transaction: int = 0) -> None:
        env = os.environ | command_environment(PUSHHUB_JOURNAL=str(folder), PUSHHUB_LOG_LEVEL="WARNING")
        command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.crashing", point, str(transaction), *arguments]
        self._process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)

    def terminate(self) -> None:
        self._process.terminate()

    def end(self) -> tuple[int, str]:
        try:
            _, errors = self._process.communicate(timeout=PROCESS_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
        return self._process.returncode, errors


def test_a_killed_rollup_goes_on_and_stops_quietly(tmp_path: Path) -> None:
    """Given a rollup that is killed in the middle of its second batch, when the next one counts the rest and what has
    come meanwhile, then each segment is counted once. On SIGTERM it ends with status 0 and prints nothing.

    tests/integration/pipeline/test_counter_crashes.py kills at the other moments; both counters share the ledger.
    """
    paths = make_segments(tmp_path, range(4), seed=10, count=10)
    transactions = -(-len(truth_of(paths[:2], seconds=60)) // KEYS_A_TRANSACTION)
    code, errors = RollupProcess(tmp_path, "rollup", "--once", point="inside", transaction=transactions + 2).end()
    assert code == -signal.SIGKILL, errors
    states = Counter(Segment.objects.values_list("state", flat=True))
    assert states == {"counted": 2, "counting": 2}, "a part of the second batch is counted"
    paths += make_segments(tmp_path, [9, 7], seed=10, count=10)

    process = RollupProcess(tmp_path, "rollup")
    try:
        wait_for(
            lambda: Segment.objects.filter(state="counted").count() == len(paths),
            timeout_seconds=PROCESS_SECONDS,
            what="the other segments",
        )
    finally:
        process.terminate()
        code, errors = process.end()

    assert_counted(paths)
    assert (code, errors) == (0, "")


def test_a_second_runner_is_refused(tmp_path: Path, settings: object) -> None:
    """Given a running rollup, when another is started on the same folder, then that one is refused."""
    settings.JOURNAL = str(tmp_path)  # type: ignore[attr-defined]
    with only_runner(tmp_path), pytest.raises(CommandError, match="another rollup runs on"):
        call_command("pipeline", "rollup", "--once")
    assert not Segment.objects.exists()


def test_a_rollup_without_a_journal_is_refused() -> None:
    with pytest.raises(CommandError, match="PUSHHUB_JOURNAL is off"):
        call_command("pipeline", "rollup", "--once")
