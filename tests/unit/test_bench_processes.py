"""How the commands of the bench end, and the processes that they have started."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import wait_for
from tests.workers import ROOT

#: A command of the bench that says when it runs. It begins as by `python -m`, while its module is looked for.
WAITING = "import sys; sys.argv[0] = '-m'; import bench, time; print(flush=True); time.sleep(600)"
#: A command that says when it runs, and takes a while to end what it has started.
CLEANING = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
folder = pathlib.Path(sys.argv[1])
try:
    (folder / "runs").touch()
    time.sleep(600)
finally:
    time.sleep(0.5)
    (folder / "cleaned").touch()
"""
#: A command of the bench that runs another one.
RUNNING = "import sys; from bench.processes import run_to_end; run_to_end([sys.executable, *sys.argv[1:]], seconds=600)"


def start(*words: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_interrupted_prints_no_traceback(number: signal.Signals) -> None:
    command = start("-c", WAITING)
    assert command.stdout is not None
    command.stdout.readline()
    command.send_signal(number)
    assert command.communicate(timeout=60) == ("", "")
    assert command.returncode == -signal.SIGINT


def test_a_command_waits_for_the_one_that_it_has_interrupted(tmp_path: Path) -> None:
    command = start("-c", RUNNING, "-c", CLEANING, tmp_path)
    wait_for((tmp_path / "runs").exists)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert (tmp_path / "cleaned").exists()


def test_what_cannot_be_measured_is_one_line() -> None:
    command = start("-m", "bench.compare", "nonsense", "--rows=single")
    assert command.communicate(timeout=60) == ("", "nonsense is no commit of this repository\n")
    assert command.returncode == 1
