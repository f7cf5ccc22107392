"""`bin/pushhub` runs the command line of the environment of `make up`, from any folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pushhub import __version__

ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(not (ROOT / ".venv/bin/python").exists(), reason="the tests run in another environment")
def test_the_script_runs_from_another_folder_and_by_a_link(tmp_path: Path) -> None:
    link = tmp_path / "pushhub"
    link.symlink_to(ROOT / "bin" / "pushhub")
    for program in (ROOT / "bin" / "pushhub", link):
        ran = subprocess.run([program, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout == f"pushhub {__version__}\n"


@pytest.mark.skipif(not (ROOT / ".venv/bin/python").exists(), reason="the tests run in another environment")
def test_the_processes_that_the_script_starts_find_the_code(tmp_path: Path) -> None:
    (tmp_path / "pushhub").mkdir()
    code = "import subprocess, sys; subprocess.run([sys.executable, '-P', '-c', 'import pushhub.cli; print(1)'])"
    ran = subprocess.run(
        [ROOT / "bin" / "pushhub", "shell", "--no-imports", "--command", code],
        cwd=tmp_path, env=os.environ | {"PUSHHUB_SECRET_KEY": "x"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "1\n"
