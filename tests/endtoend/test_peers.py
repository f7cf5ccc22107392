"""`python -m bench.peers` with small counts, as far as it needs nothing from a registry."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.settings import TEMPORARY

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.peers", *words]
    env = os.environ | {"TMPDIR": TEMPORARY}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)


def test_stock_celery_and_pushhub_are_measured_and_every_message_is_counted_once(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = run("--quick", "--only=celery-prefork,pushhub", f"--out={out}")
    assert done.returncode == 0, done.stderr
    measured = json.loads(out.read_text())["peers"]
    assert set(measured) == {"celery-prefork", "pushhub"}
    for figures in measured.values():
        assert [name for name, figure in figures.items() if figure <= 0 and name != "repeats"] == []
    assert "| Celery (prefork), requests |" in done.stdout


def test_a_peer_that_there_is_not_is_refused_in_one_line() -> None:
    done = run("--only=kafka")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "python -m bench.peers: error: no such peer: kafka (--help lists them)",
    )
