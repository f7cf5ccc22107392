"""How the jobs spread over executors: `python -m tests.pipeline.spread MESSAGES`, for docs/pipeline-design.md.

Each job runs on a standalone master with one, two and four executors of one core. MESSAGES are archived and compacted,
and a quarter of them replayed and ingested, with 97 ordering keys; eight times as many events are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.pipeline.spread_job import FILES, KEYS, PROJECTS
from tests.pipeline.standalone import EXECUTOR_MEMORY, SECRET, SETTINGS, Work, standalone, work_in
from tests.workers import ROOT

JOBS = ("archive", "compaction", "replay", "ingest", "ingest by key", "rollup")


@dataclass(frozen=True, slots=True)
class Spread:
    """What the jobs did on a number of executors: the seconds of each, and what the event log says."""

    seconds: Mapping[str, float]
    works: Mapping[str, Work]
    #: The address on which the driver listened.
    driver: str


def spread(folder: Path, *, master: str, executors: int, messages: int, environment: Mapping[str, str]) -> Spread:
    """Do every job on a cluster. `environment` has the database and Redis, and settings of Spark and a secret.

    The segments are in `folder`/segments.
    """
    write_rows(folder / "rows", messages // PROJECTS)
    (folder / "events").mkdir()
    conf = SETTINGS.format(executors=executors, memory=EXECUTOR_MEMORY, folder=folder / "events")
    more = environment.get("PUSHHUB_SPARK_CONF", "")
    settings = {**environment, "PUSHHUB_SPARK_CONF": f"{more},{conf}" if more else conf}
    ended = run_jobs(folder, master=master, messages=messages, environment=settings)
    assert ended.returncode == 0, ended.stderr[-3000:]
    [log] = (folder / "events").iterdir()
    report = json.loads(ended.stdout.splitlines()[-1])
    return Spread(report["seconds"], work_in(log), report["driver"])


def run_jobs(
    folder: Path, *, master: str, messages: int, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the driver of every job, which knows the master's address, and `environment`."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "pushhub.settings",
        "PUSHHUB_SPARK_MASTER": master,
        "PUSHHUB_SECRET_KEY": "x",
        **environment,
        "PUSHHUB_ARCHIVE": str(folder / "archive"),
        "PUSHHUB_JOURNAL": "off",
    }
    command = [sys.executable, "-W", "ignore", "-m", "tests.pipeline.spread_job", str(folder), str(messages)]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=3000, check=False)


def write_rows(folder: Path, count: int) -> None:
    """Write the rows of the ingests, in several files, of which the first ends with a line that is no row."""
    folder.mkdir()
    for number in range(FILES):
        rows = [{"n": n, "key": f"k{n % KEYS}", "text": "x" * 200} for n in range(number, count, FILES)]
        lines = [*map(json.dumps, rows), *(["no row"] if number == 0 else [])]
        (folder / f"{number}.json").write_text("".join(f"{line}\n" for line in lines))


def main(messages: int) -> None:
    import django

    from bench.postgresql import postgresql

    rows = {"archive": messages, "compaction": messages, "rollup": messages // 2500 * 20_000}
    with postgresql() as url, TemporaryDirectory() as data:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "pushhub.settings", "PUSHHUB_DATABASE_URL": url}
        os.environ |= {
            "PUSHHUB_DATA": data,
            "PUSHHUB_SECRET_KEY": "x",
            "PUSHHUB_DEVELOPMENT": "1",
            "PUSHHUB_LOG_LEVEL": "WARNING",
        }
        django.setup()
        from bench.rollup import _write
        from bench.stand import stand

        for executors in (1, 2, 4):
            with TemporaryDirectory() as name, stand() as stood:
                _write(Path(name) / "segments", messages // 2500)
                secret = Path(name) / "secret"
                secret.write_text(SECRET)
                environment = {**stood.env, "PUSHHUB_SPARK_SECRET_FILE": str(secret)}
                with standalone(Path(name), executors=executors) as url:
                    done = spread(
                        Path(name), master=url, executors=executors, messages=messages, environment=environment
                    )
            for job in JOBS:
                rate = rows.get(job, messages // PROJECTS) / done.seconds[job]
                tasks = " ".join(str(count) for _, count in sorted(done.works[job].tasks.items()))
                print(f"{executors} {job}: {rate:,.0f}/s, tasks {tasks}, result {done.works[job].result_bytes:,} bytes")


if __name__ == "__main__":
    main(int(sys.argv[1]))
