"""Locks that machines share by PostgreSQL: one process has each, until it ends or is killed or frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from deliveries.pipeline.service import database_url
from pushhub.common import advisory
from pushhub.common.advisory import advisory_lock_tried
from tests.databases import other_database
from tests.ports import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

#: A process that holds a lock until its input ends, and says then whether it has noticed that it lost it.
HOLDER = """
import django, logging, sys
django.setup()
from pushhub.common import advisory
advisory.FROZEN_SECONDS, advisory.LIVELY_SECONDS = 1, 0.2
with advisory.advisory_lock("a job"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def machine(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python on the test's database as another machine would."""
    environment = os.environ | {"PUSHHUB_DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "pushhub.settings"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen([sys.executable, *words], env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def only_postgresql() -> None:
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite has one machine")


def is_free() -> bool:
    with advisory_lock_tried("a job") as is_held:
        return is_held


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lock_is_free_after_its_holder_was_killed_or_frozen(number: int) -> None:
    with machine("-c", HOLDER) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert not is_free()
        with advisory_lock_tried("another job") as is_held:
            assert is_held
        holder.send_signal(number)
        wait_for(is_free, what="the end of the lock")
        if number == signal.SIGSTOP:
            # The holder is told when it goes on.
            holder.send_signal(signal.SIGCONT)
            assert "the lock 'a job' is lost" in holder.stdout.readline()


def test_a_lock_is_kept_for_as_long_as_the_block_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advisory, "FROZEN_SECONDS", 1)
    monkeypatch.setattr(advisory, "LIVELY_SECONDS", 0.1)
    with advisory_lock_tried("a job"):
        connection.cursor().execute("SELECT pg_sleep(2)")
        assert not is_free()


def test_two_machines_migrate_an_empty_database_at_once(tmp_path: Path) -> None:
    migrate = ("-m", "django", "migrate", "--verbosity=0")
    with other_database(tmp_path, name="at_once"), machine(*migrate) as first, machine(*migrate) as second:
        for process in (first, second):
            output, _ = process.communicate(timeout=600)
            assert (process.returncode, output) == (0, "")
