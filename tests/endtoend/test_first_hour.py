"""The places where a newcomer may start PushHub, as docs/troubleshooting.md#the-first-hour has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.endtoend.running import ROOT, environment, running
from tests.ports import free_port


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the repository's programs at a path with spaces, with this environment as its `.venv`."""
    folder = tmp_path / "my folder" / "push hub"
    for name in ("pushhub", "subscriptions", "deliveries", "bin"):
        shutil.copytree(ROOT / name, folder / name)  # with the bytecode
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def test_it_runs_at_a_path_with_spaces_behind_a_proxy_and_without_a_home(copy: Path, tmp_path: Path) -> None:
    # Given a home in which not even root could write, and a proxy that is down
    home, proxy = tmp_path / "home", f"http://127.0.0.1:{free_port()}"
    home.touch()
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), proxy)
    variables = environment(copy / ".pushhub", HOME=str(home), PUSHHUB_SPARK="off", **proxies)
    # When PushHub starts there, then its command line works
    with running(variables, folder=copy):
        for words in (["topics", "create", "greetings"], ["topics", "list"]):
            done = subprocess.run(
                [copy / "bin" / "pushhub", *words, "--project=demo"],
                cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
    assert "projects/demo/topics/greetings" in done.stdout


def run_make(*words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def python_that(folder: Path, fails_at: str) -> Path:
    """Return a stand-in for Python, which fails at one of its arguments and does nothing else."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\ncase "$*" in *{fails_at}*) echo "No matching distribution" >&2; exit 1;; esac\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize("flags", ["-eu -o pipefail -c", "-c"], ids=["make 4", "make 3.81, of macOS"])
def test_an_installation_that_fails_is_not_taken_for_done_and_says_where_remedies_are(
    tmp_path: Path, flags: str
) -> None:
    python_that(tmp_path, fails_at="service.txt")
    done = run_make("install", f"VENV={tmp_path}", f".SHELLFLAGS={flags}")
    assert done.returncode != 0
    assert done.stderr.splitlines()[:2] == [
        "No matching distribution",
        "nothing is lost, but pip failed: docs/troubleshooting.md#the-first-hour has remedies",
    ]
    assert not (tmp_path / ".installed").exists()


def test_an_older_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    python = python_that(tmp_path, fails_at="version_info")
    done = run_make("install", f"VENV={tmp_path / 'new'}", f"PYTHON={python}")
    assert done.returncode != 0
    refused = "Python 3.11 or newer is needed; name it with PYTHON=/path/to/python3"
    assert done.stderr.splitlines()[-2] == refused
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("words", "compiles"), [([], False), (["WHEELS="], True)])
def test_nothing_is_compiled_unless_asked_for(tmp_path: Path, words: list[str], compiles: bool) -> None:
    (tmp_path / ".made").touch()
    (install,) = [
        line
        for line in run_make("--dry-run", f"{tmp_path}/.installed", f"VENV={tmp_path}", *words).stdout.splitlines()
        if "locks/service.txt" in line
    ]
    assert ("--only-binary :all:" not in install) is compiles
