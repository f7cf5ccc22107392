"""Short storms, for every run of the tests. CONTRIBUTING.md says how to run longer ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.programs import postgresql_programs
from tests.settings import TEMPORARY
from tests.workers import ROOT

#: No test judges times: those of a busy machine say nothing.
UNLIMITED_SECONDS = "3600"
#: The faults that every promise withstands on a database by itself; `make storm` has the others too.
FAULTS = (
    "kill,freeze,clock,network-slow,endpoint-moved,subscription-made-again,topic-deleted,seek,"
    "key-rotated,sqlite-locked,database-connections-cut"
)


def storm(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", "--wait", UNLIMITED_SECONDS, *words]
    # A server's user and the length of a socket's path need a plain folder.
    environment = {**os.environ, "TMPDIR": TEMPORARY}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_storm_breaks_no_promise(database: str) -> None:
    if database == "postgresql" and postgresql_programs() is None:
        pytest.skip("PostgreSQL is not installed")
    run = storm("--seed", "1", "--minutes", "0.7", "--load", "10", "--database", database, "--only", FAULTS)
    assert run.returncode == 0, run.stdout[-20_000:] + run.stderr
