"""A run shows the tests on one database after those on the other, and at Ctrl-C waits until both have cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.background import BackgroundCommand

ROOT = Path(__file__).parents[2]
#: Ends once there is a second command.
FIRST = """
import pathlib, sys, time
print("first", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
print("end of first")
"""
SECOND = """
import pathlib, sys
pathlib.Path(sys.argv[1]).touch()
print("second", flush=True)
print("its error", file=sys.stderr)
sys.exit(3)
"""
#: Both clean up for half a second, which is longer than `subprocess.run` waits at Ctrl-C before it kills.
INTERRUPTED = """
import pathlib, sys, time
from tests.background import BackgroundCommand

COMMAND = '''
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1] + " runs").touch()
    time.sleep(600)
finally:
    time.sleep(0.5)
    pathlib.Path(sys.argv[1] + " cleaned up").touch()
'''
folder = pathlib.Path(sys.argv[1])
words = [[sys.executable, "-c", COMMAND, str(folder / name)] for name in ("first", "second")]
with (
    BackgroundCommand("first", words[0], folder=folder, is_shown=True) as first,
    BackgroundCommand("second", words[1], folder=folder, is_shown=False),
):
    while not all((folder / f"{name} runs").exists() for name in ("first", "second")):
        time.sleep(0.01)
    print("both run", flush=True)
    first.finish()
"""


def test_the_second_command_begins_before_the_first_ends_and_is_shown_after_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = str(tmp_path / "begun")
    with (
        BackgroundCommand("one", [sys.executable, "-c", FIRST, begun], folder=tmp_path, is_shown=True) as first,
        BackgroundCommand("two", [sys.executable, "-c", SECOND, begun], folder=tmp_path, is_shown=False) as second,
    ):
        assert (first.finish(), second.finish()) == (0, 3)
    assert capfd.readouterr().out.split("\n") == [
        *("", "== one ==", "first", "end of first"),
        *("", "== two ==", "second", "its error", ""),
    ]


def test_both_commands_may_clean_up_at_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)][-1] == "both run\n"
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
    assert {path.name for path in tmp_path.glob("* cleaned up")} == {"first cleaned up", "second cleaned up"}
