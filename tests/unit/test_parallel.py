"""Tests run in several processes, and none that fails, ends its process or cleans up badly is overlooked."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.ports import wait_for
from tests.workers import ROOT

#: The fixture of the session, its folder, and what is printed belong to one process.
TESTS = """
import os, subprocess, time
from pathlib import Path
import pytest

@pytest.fixture(scope="session")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("{name}", numbered=False)
    yield home
    (home / "end").touch()
    {at_end}

@pytest.mark.parametrize("number", range(3))
def test_it(home, number, capfd):
    with (home / "tests").open("a") as file:
        print(os.getpid(), "{name}", number, file=file)
    subprocess.run(["echo", "{name}"])
    assert capfd.readouterr().out == "{name}\\n"
    {body}
"""


def start(folder: Path, **files: tuple[str, str]) -> subprocess.Popen[str]:
    """Start tests in two processes. Each file is given by what its last test and its session do besides."""
    for name, (body, at_end) in files.items():
        text = TESTS.format(name=name, body=f"if number == 1: {body}" if body else "", at_end=at_end)
        (folder / f"test_{name}.py").write_text(text)
    options = ["-p", "tests.parallel", "-p", "no:cacheprovider", "--processes=2", f"--basetemp={folder / 'temporary'}"]
    environment = {name: text for name, text in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", *options, f"--rootdir={folder}", str(folder)]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(folder: Path, **files: tuple[str, str]) -> tuple[int, str]:
    """Run tests, and return pytest's exit status and what it printed."""
    with start(folder, **files) as process:
        output, _ = process.communicate(timeout=600)
    return process.returncode, output


def homes(folder: Path) -> list[Path]:
    return sorted((folder / "temporary").glob("process*/?"))


def test_each_test_runs_once_and_a_file_in_one_process(tmp_path: Path) -> None:
    status, output = run(tmp_path, **dict.fromkeys("abcd", ("", "")))
    assert status == 0, output
    assert "12 passed" in output
    ran = [line.split() for home in homes(tmp_path) for line in (home / "tests").read_text().splitlines()]
    assert sorted(words[1:] for words in ran) == [[name, str(number)] for name in "abcd" for number in range(3)]
    assert len({(pid, name) for pid, name, _ in ran}) == 4
    assert len({pid for pid, *_ in ran}) == len({home.parent for home in homes(tmp_path)}) == 2
    assert all((home / "end").exists() for home in homes(tmp_path))


def test_a_failed_test_a_lost_process_and_a_bad_end_fail_the_run(tmp_path: Path) -> None:
    status, output = run(tmp_path, a=("assert False", ""))
    assert (status, "2 passed" in output, "1 failed" in output) == (1, True, True), output
    status, output = run(tmp_path, a=("os._exit(7)", ""), b=("time.sleep(1)", ""))
    assert status == 1
    # The other process runs what the lost one had left.
    assert re.search(r"1 failed, 5 passed", output), output
    assert "test_a.py::test_it[1]" in output
    assert "process 0 ended with 7" in output or "process 1 ended with 7" in output
    status, output = run(tmp_path, a=("", ""), b=("", "raise OSError('no end')"))
    assert (status, "6 passed" in output, "no end" in output) == (1, True, True), output


def test_ctrl_c_lets_each_process_clean_up(tmp_path: Path) -> None:
    with start(tmp_path, a=("time.sleep(600)", ""), b=("time.sleep(600)", "")) as process:
        wait_for(lambda: len([1 for home in homes(tmp_path) if (home / "tests").exists()]) == 2, what="both processes")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 2, output
    assert [(home / "end").exists() for home in homes(tmp_path)] == [True, True]
