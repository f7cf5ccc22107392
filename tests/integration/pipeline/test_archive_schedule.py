"""The schedule by which beat starts runs of the archive."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveries.backlog.connection import redis_client
from deliveries.pipeline.archiving.locks import is_archiving, only_archiver
from deliveries.pipeline.archiving.schedule import COMPACT_SECONDS, COMPACTED_KEY, Schedule
from tests.ports import wait_for
from tests.workers import ROOT

#: A program that records its arguments, and ends when the file `go` exists.
RUN = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
with (folder / "runs").open("a") as runs:
    runs.write(" ".join(sys.argv[2:]) + ";")
while not (folder / "go").exists():
    time.sleep(0.01)
"""


class Machine:
    """A schedule and everything it depends on: what Spark lacks, whether there are new messages, and the archive."""

    def __init__(self, folder: Path) -> None:
        self.archive = folder / "archive"
        self.lacking = ""
        self.has_news = True
        self._folder = folder
        self.schedule = Schedule(
            command=(sys.executable, "-c", RUN, str(folder)),
            missing=lambda: self.lacking,
            has_news=lambda: self.has_news,
            is_busy=lambda: is_archiving(self.archive),
        )

    def runs(self) -> list[str]:
        """Return the arguments of each run so far."""
        path = self._folder / "runs"
        return path.read_text().split(";")[:-1] if path.exists() else []

    def let_run_end(self) -> None:
        (self._folder / "go").touch()
        process = self.schedule._process
        assert process is not None
        assert process.wait(timeout=60) == 0


@pytest.fixture
def machine(tmp_path: Path, redis_url: str) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.schedule.stop()


def test_runs_do_not_overlap_and_one_an_hour_compacts(machine: Machine) -> None:
    assert machine.schedule.start()
    assert not machine.schedule.start(), "the first run is not over"
    machine.let_run_end()
    assert machine.schedule.start()
    machine.let_run_end()
    assert 0 < redis_client().ttl(COMPACTED_KEY) <= COMPACT_SECONDS
    redis_client().delete(COMPACTED_KEY)
    assert machine.schedule.start()
    machine.let_run_end()
    assert machine.runs() == ["--compact", "", "--compact"]


@pytest.mark.django_db
def test_a_worker_starts_no_run_while_that_of_another_worker_works_on_the_archive(machine: Machine) -> None:
    with only_archiver(machine.archive):
        assert not machine.schedule.start()
    assert machine.schedule.start()
    machine.let_run_end()


def test_without_new_messages_java_is_started_once_an_hour(machine: Machine) -> None:
    machine.has_news = False
    assert machine.schedule.start()
    machine.let_run_end()
    assert not machine.schedule.start()
    redis_client().delete(COMPACTED_KEY)
    assert machine.schedule.start()


def test_without_spark_the_log_says_that_messages_wait(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    machine.lacking = "no Java found"
    assert not machine.schedule.start()
    assert [record.message for record in caplog.records] == [
        "messages wait in the database for the archive, which needs Spark: no Java found"
    ]
    machine.lacking = ""
    assert machine.schedule.start(), "Spark was installed meanwhile"
    machine.let_run_end()
    assert machine.runs() == ["--compact"]


def test_a_run_ends_with_its_worker(machine: Machine) -> None:
    machine.schedule.start()
    wait_for(machine.runs, what="the run")
    machine.schedule.stop()
    assert machine.schedule.start()


@pytest.mark.parametrize(("archiving", "seconds"), [("on", ["77"]), ("off", [])])
def test_beat_starts_runs_if_archiving_is_on(archiving: str, seconds: list[str]) -> None:
    source = (
        "from pushhub.celery import app\n"
        "for entry in app.conf.beat_schedule.values():\n"
        "    if entry['task'] == 'deliveries.archive_start': print(entry['schedule'])"
    )
    env = os.environ | {"PUSHHUB_ARCHIVING": archiving, "PUSHHUB_ARCHIVE_SECONDS": "77", "PUSHHUB_SECRET_KEY": "x"}
    env["DJANGO_SETTINGS_MODULE"] = "pushhub.settings"
    process = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == seconds
