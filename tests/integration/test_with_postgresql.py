"""The PostgreSQL server of the tests ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.ports import wait_for
from tests.programs import postgresql_programs
from tests.settings import TEMPORARY

ROOT = Path(__file__).parents[2]
#: It cleans up for half a second, which is longer than `subprocess.run` waits at Ctrl-C before it kills.
COMMAND = """
import os, pathlib, sys, time
try:
    print(os.environ["PUSHHUB_DATABASE_URL"], flush=True)
    time.sleep(600)
finally:
    time.sleep(0.5)
    pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.skipif(postgresql_programs() is None, reason="PostgreSQL is not installed")
@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_the_server_ends_with_whoever_started_it(tmp_path: Path, ending: signal.Signals) -> None:
    """Ctrl-C reaches all processes of a terminal, SIGTERM the one that it is sent to. Both let the command clean up."""
    cleaned_up = tmp_path / "cleaned up"
    command = [sys.executable, "-m", "tests.with_postgresql", sys.executable, "-c", COMMAND, str(cleaned_up)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        # The user of the server may not enter the temporary folder of this run.
        env={**os.environ, "TMPDIR": TEMPORARY},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    folder = Path(unquote(urlsplit(process.stdout.readline().strip()).netloc.partition("@")[2]))
    server = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    try:
        send = os.killpg if ending == signal.SIGINT else os.kill
        send(process.pid, ending)
        process.wait()
        assert cleaned_up.exists()
        assert not folder.exists()
        wait_for(lambda: not _runs(server), what="the end of the server")
    finally:
        for end, pid in ((os.killpg, process.pid), (os.kill, server)):
            with suppress(ProcessLookupError):
                end(pid, signal.SIGQUIT)
        process.stdout.close()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
