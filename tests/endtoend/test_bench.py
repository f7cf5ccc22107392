"""Each row of the bench measures something, with small counts. The figures themselves are those of a busy machine.

Rows at several sizes are left out: with small counts they do what the row of one size does, with a Java of their own.
So is the row of neighbours on PostgreSQL, as others try the bench there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.limits import LIMITS
from bench.rows import ROWS
from deliveries.pipeline import needs
from tests.programs import bench_programs, pgbouncer, postgresql_programs
from tests.settings import TEMPORARY

ROOT = Path(__file__).parent.parent.parent
SPARK = ("archive", "datasource", "rollup")
LEFT_OUT = ("rollup_sizes", "archive_sizes", "data_source_sizes", "neighbours_postgresql")
POSTGRESQL = [name for name, row in ROWS.items() if row.on_postgresql and name not in LEFT_OUT]
PIPELINE = [name for name, row in ROWS.items() if row.module in SPARK and name not in LEFT_OUT]
ENGINE = [name for name in ROWS if name not in (*POSTGRESQL, *PIPELINE, *LEFT_OUT)]


@pytest.mark.parametrize("names", [PIPELINE, ENGINE, POSTGRESQL], ids=["pipeline", "engine", "postgresql"])
def test_each_row_measures_something(names: list[str], tmp_path: Path) -> None:
    if missing := _missing(names):
        pytest.skip(missing)
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench", "--quick", f"--only={','.join(names)}", f"--out={out}"]
    # PostgreSQL and nginx give root's rights up, and would not reach the folder of the tests.
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(out.read_text())["rows"]) == set(names)


@pytest.mark.parametrize("flags", [[], ["--check"]], ids=["costs", "check"])
def test_the_costs_of_the_capacity_model_are_measured(flags: list[str]) -> None:
    if missing := _missing(POSTGRESQL):
        pytest.skip(missing)
    command = [sys.executable, "-m", "bench.capacity", "--quick", *flags]
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["runs"][0]["us"]["push"] > 0 if flags else sum(results["costs"]["push_us"].values()) > 0


def test_each_limit_is_measured() -> None:
    if missing := _missing(POSTGRESQL):
        pytest.skip(missing)
    rows = list({limit.measure: name for name, limit in LIMITS.items()}.values())
    command = [sys.executable, "-m", "bench.limits", *rows, "--count=20"]
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert [row for row in rows if "beyond" in measured[row]["figures"]] == rows


def test_a_redis_cluster_is_measured(tmp_path: Path) -> None:
    if not bench_programs():
        pytest.skip("nginx, wrk or h2load is not installed")
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench.cluster", "--turns=1", "--deliveries=640", f"--out={out}"]
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert all(figures["per_second"] > 0 for figures in json.loads(out.read_text())["figures"].values())


@pytest.mark.parametrize(
    "flags",
    [["--behind=300", "--partitions=time:15"], ["--topics=3", "--partitions=hash:4", "--pgbouncer"]],
    ids=" ".join,
)
def test_a_steady_load_is_measured(flags: list[str]) -> None:
    if (missing := _missing(POSTGRESQL)) or ("--pgbouncer" in flags and pgbouncer() is None):
        pytest.skip(missing or "PgBouncer is not installed")
    command = [sys.executable, "-m", "bench.vacuum", "--minutes=0.1", "--rate=500", "--every=2", *flags]
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["postgresql_us"] > 0


def test_layouts_of_the_tables_are_compared() -> None:
    if missing := _missing(POSTGRESQL):
        pytest.skip(missing)
    command = [sys.executable, "-m", "bench.layouts", "--quick"]
    env = os.environ | {"TMPDIR": TEMPORARY}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert all(figures["statements_us"] > 0 for figures in json.loads(done.stdout).values())


def _missing(names: list[str]) -> str:
    if not bench_programs():
        return "nginx, wrk or h2load is not installed"
    if names is PIPELINE:
        return needs.missing()
    return "PostgreSQL is not installed" if names is POSTGRESQL and postgresql_programs() is None else ""
