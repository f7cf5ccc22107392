"""Everything moves from SQLite to PostgreSQL, as docs/backup.md says, and back."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
import requests

from tests.endtoend.running import ROOT, Running, environment, running
from tests.ports import wait_for
from tests.programs import postgresql_programs
from tests.settings import TEMPORARY
from tests.with_postgresql import PostgresqlServer

#: It orders names as people do, which SQLite doesn't.
CREATE = "CREATE DATABASE pushhub TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en' LOCALE 'C.UTF-8'"
SEGMENT = (
    "INSERT INTO deliveries_segment (name, state, reason, rows, place, job, at)"
    " VALUES (?, 'counted', '', 1, '[]', 'embedded', '2026-11-28 08:00:00')"
)


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of an empty database of PostgreSQL."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with TemporaryDirectory(prefix="pushhub-move-", dir=TEMPORARY, ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        (cluster := Path(name) / "cluster").mkdir()
        server = PostgresqlServer(cluster, bin_folder=programs, options="-c fsync=off -c autovacuum=off")
        server.create()
        server.start()
        try:
            with psycopg.connect(host=str(cluster), user="pushhub", dbname="postgres", autocommit=True) as connection:
                connection.execute(CREATE)
            yield server.url.removesuffix("postgres") + "pushhub"
        finally:
            server.stop()


def move(to: str, *, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", "move", "--to", to]
    return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)


def pulled(pushhub: Running) -> list[str]:
    """Return the data of the messages that wait, without acknowledging them."""
    path = f"{pushhub.api}/v1/projects/demo/subscriptions/worker:pull"
    answer = requests.post(path, json={"maxMessages": 10, "returnImmediately": True}, timeout=60).json()
    return [received["message"]["data"] for received in answer.get("receivedMessages", [])]


def test_everything_moves_to_postgresql_and_back(url: str, tmp_path: Path) -> None:
    # Given a PushHub on SQLite, whose rows have JSON and names that PostgreSQL orders in its own way
    (data := tmp_path / "data").mkdir()
    sqlite = environment(data, PUSHHUB_SPARK="off")
    postgresql = {**sqlite, "PUSHHUB_DATABASE_URL": url}
    with running(sqlite) as pushhub:
        pushhub.put("topics/orders", {"labels": {"zone": "west", "b": "first", "team": "shop"}})
        pushhub.put("subscriptions/worker", {"topic": "projects/demo/topics/orders"})
        pushhub.post("topics/orders:publish", {"messages": [{"data": "aGk="}]})
        # When somebody moves it while it runs, then that is refused
        refused = move(url, variables=sqlite)
        assert refused.returncode == 1 and "in use by another PushHub" in refused.stderr, refused.stderr
    with closing(sqlite3.connect(data / "pushhub.sqlite3")) as database, database:
        database.executemany(SEGMENT, [("B",), ("a",), ("a-b",), ("aa",)])
    # When it is moved
    moved = move(url, variables=sqlite)
    # Then it goes on at PostgreSQL
    assert moved.stdout.startswith("moved."), moved.stderr
    with running(postgresql) as pushhub:
        assert pulled(pushhub) == ["aGk="]
        pushhub.post("topics/orders:publish", {"messages": [{"data": "aG8="}]})
    # And back on SQLite
    moved = move(f"sqlite:///{tmp_path}/back.sqlite3", variables=postgresql)
    assert moved.stdout.startswith("moved."), moved.stderr
    with running({**sqlite, "PUSHHUB_DATABASE_URL": f"sqlite:///{tmp_path}/back.sqlite3"}) as pushhub:
        # One was pulled before, so it may be a retry that is due later
        found: set[str] = set()
        wait_for(lambda: found.update(pulled(pushhub)) or len(found) == 2, what="both messages")
        assert found == {"aG8=", "aGk="}
