"""All of PushHub on a PostgreSQL behind PgBouncer in transaction mode."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import requests
from google.cloud.pubsub_v1 import SubscriberClient

from pushhub.common.databases import SESSION_SETTINGS
from pushhub.common.environment import DEVELOPMENT_DEFAULTS
from tests.endtoend.running import ROOT, Running, environment, running
from tests.pgbouncer import in_front_of
from tests.ports import wait_for
from tests.programs import pgbouncer, postgresql_programs
from tests.receiver import Receiver
from tests.settings import TEMPORARY
from tests.with_postgresql import PostgresqlServer

KEYS, COUNT = ("red", "green", "blue"), 20
#: Each of the timed tasks, whoever has their leases.
MAINTENANCE = """
from pushhub.celery import app
app.loader.import_default_modules()
for entry in app.conf.beat_schedule.values():
    app.tasks[entry["task"]].run(*entry["args"])
"""

#: The locks of archives in buckets. The queries meanwhile move on to other connections.
LOCKS = """
from django.db import connection
from pushhub.common.advisory import advisory_lock, advisory_lock_tried
for number in range(1, 4):
    with advisory_lock("an archive", shared=True), advisory_lock_tried("an archive") as is_locked:
        assert not is_locked
        for _ in range(number):
            connection.cursor().execute("SELECT 1")
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory'")
        assert cursor.fetchall() == []
"""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    programs = postgresql_programs()
    if programs is None or pgbouncer() is None:
        pytest.skip("PostgreSQL or PgBouncer is not installed")
    with TemporaryDirectory(prefix="pushhub-pgbouncer-", dir=TEMPORARY, ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        (cluster := Path(name) / "cluster").mkdir()
        server = PostgresqlServer(cluster, bin_folder=programs, options="-c fsync=off -c autovacuum=off")
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def run(*words: str, variables: dict[str, str]) -> str:
    """Run a command of PushHub, and return what it prints."""
    command = [sys.executable, str(ROOT / "manage.py"), *words]
    return subprocess.run(command, cwd=ROOT, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


def findings(variables: dict[str, str], check: str) -> list[str]:
    command = [sys.executable, "-m", "pushhub.doctor", "--format", "json"]
    printed = subprocess.run(command, cwd=ROOT, env=variables, check=False, stdout=subprocess.PIPE, text=True).stdout
    return [f"{each['level']}: {each['text']}" for each in json.loads(printed)["findings"] if each["check"] == check]


def test_the_doctor_tells_the_modes_of_a_pooler_and_what_sessions_lack(
    server: PostgresqlServer, tmp_path: Path
) -> None:
    def found(mode: str) -> list[str]:
        with in_front_of(server.folder, server.folder.parent / "doctor", mode=mode) as url:
            return findings(environment(tmp_path, PUSHHUB_DATABASE_URL=url), "pooler")

    assert found("session") == ["ok: each connection has a process of PostgreSQL: no pooler, or one in session mode"]
    assert found("statement") == ["failed: PgBouncer is in statement mode"]
    works, *lacking = found("transaction")
    assert works == "ok: a pooler such as PgBouncer in transaction mode is in front of PostgreSQL, which works"
    assert [line.partition(",")[0] for line in lacking] == [
        "warning: sessions begin without PushHub's idle_in_transaction_session_timeout and jit"
    ]
    for name, value in SESSION_SETTINGS.items():
        assert f"ALTER ROLE pushhub SET {name} = '{value}'" in (ROOT / "docs" / "settings.md").read_text()
        server.execute(f"ALTER ROLE pushhub SET {name} = '{value}'")
    assert found("transaction") == [works]


def test_everything_works_behind_a_pooler_that_gives_each_transaction_another_connection(
    server: PostgresqlServer, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_front_of(server.folder, server.folder.parent / "pooler", mode="transaction") as url:
        variables = environment(tmp_path, PUSHHUB_DATABASE_URL=url)
        # The migrations are the first that goes through the pooler.
        with running(variables) as pushhub:
            use(pushhub, receiver, monkeypatch)
            for page in ("/admin/deliveries/delivery/", "/metrics"):
                assert requests.get(f"{pushhub.api}{page}", timeout=60).status_code == 200, page
            run("shell", "-c", MAINTENANCE + LOCKS, variables=variables | DEVELOPMENT_DEFAULTS)
            run("backup", str(tmp_path / "backup"), variables=variables | DEVELOPMENT_DEFAULTS)
        assert "ERROR" not in pushhub.printed() and "Traceback" not in pushhub.printed()


def use(pushhub: Running, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish and receive in each way."""
    pushhub.put("topics/orders", {})
    pushhub.put("subscriptions/pull", {"topic": "projects/demo/topics/orders", "enableMessageOrdering": True})
    pushed = {"topic": "projects/demo/topics/orders", "pushConfig": {"pushEndpoint": receiver.url}}
    pushhub.put("subscriptions/push", {**pushed, "enableMessageOrdering": True})
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pushhub.environment["PUSHHUB_GRPC"])
    for number in range(COUNT):
        data = base64.b64encode(str(number).encode()).decode()
        for key in KEYS:
            pushhub.post("topics/orders:publish", {"messages": [{"data": data, "orderingKey": key}]})
    with SubscriberClient() as subscriber:
        pulled: list[Any] = []

        def is_pulled() -> bool:
            answer = subscriber.pull(subscription="projects/demo/subscriptions/pull", max_messages=10)
            if answer.received_messages:
                ids = [message.ack_id for message in answer.received_messages]
                subscriber.acknowledge(subscription="projects/demo/subscriptions/pull", ack_ids=ids)
            pulled.extend((each.message.ordering_key, int(each.message.data)) for each in answer.received_messages)
            return len(pulled) == COUNT * len(KEYS)

        wait_for(is_pulled, what="the pulls")
    pushes = [request.json["message"] for request in receiver.wait(COUNT * len(KEYS))]
    pushed_in_order = [(each["orderingKey"], int(base64.b64decode(each["data"]))) for each in pushes]
    for key in KEYS:
        for order in (pulled, pushed_in_order):
            assert [number for own, number in order if own == key] == list(range(COUNT))
