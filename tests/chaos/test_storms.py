"""Short storms, for every run of the tests. CONTRIBUTING.md says how to run longer ones."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

import pytest

from tests.programs import postgresql_programs
from tests.settings import TEMPORARY
from tests.workers import ROOT

#: No test judges times: those of a busy machine say nothing.
UNLIMITED_SECONDS = "3600"
#: The faults that every promise withstands on a database by itself; `make storm` has the others too.
FAULTS = (
    "kill,freeze,clock,network-slow,endpoint-moved,subscription-paused,subscription-made-again,topic-deleted,seek,"
    "key-replaced,sqlite-locked,database-connections-cut,push-paused,permission-revoked"
)


def storm(*words: str, folder: str = TEMPORARY) -> subprocess.CompletedProcess[str]:
    """Run a storm, whose logs are in a folder that may not have a long name, as it has sockets."""
    command = [sys.executable, "-m", "tests.chaos", "--wait", UNLIMITED_SECONDS, "--load", "10", *words]
    environment = {**os.environ, "TMPDIR": folder}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("database", "cells"), [("sqlite", "1"), ("postgresql", "8")])
def test_a_storm_breaks_no_promise(database: str, cells: str) -> None:
    if database == "postgresql" and postgresql_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    words = ("--database", database, "--cells", cells, "--only", FAULTS, "--bulk", "100")
    run = storm("--seed", "26", "--minutes", "0.4", "--every", "3.5", *words)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr


def test_the_checker_finds_planted_bugs() -> None:
    bugs = {"order-ignored": "inverted", "settle-repeated": "unexplained duplicate"}
    with TemporaryDirectory(prefix="pushhub-chaos-", dir=TEMPORARY) as folder:
        run = storm("--seed", "1", "--minutes", "0.2", "--drain", "10", "--plant", ",".join(bugs), folder=folder)
    assert run.returncode == 1, run.stdout[-20_000:] + run.stderr
    assert all(f"\n{finding}: " in run.stdout for finding in bugs.values()), run.stdout[-20_000:] + run.stderr
