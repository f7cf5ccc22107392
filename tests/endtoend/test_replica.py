"""PushHub with a read replica: a primary and a hot standby that streams from it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import requests

from pushhub.common.environment import DEVELOPMENT_DEFAULTS
from tests.endtoend.running import ROOT, Running, environment, running
from tests.pgbouncer import in_front_of
from tests.ports import wait_for
from tests.programs import pgbouncer, postgresql_programs
from tests.settings import TEMPORARY
from tests.with_postgresql import PostgresqlServer

NOTICE = "replica is behind"
STATE = "/admin/deliveries/delivery/state/1/"
PINNED = "pushhub_changed"
#: A backup that waits after its first table until it is told to go on. Both of its beginnings print that table.
BACKUP = """
import sys
from pathlib import Path
import django
django.setup()
from deliveries.backup.saving import save_backup
from pushhub.common.replica import export

def write(alias):
    def say(line):
        print(line, flush=True)
        if alias == "replica":
            sys.stdin.readline()
    print("from", alias, flush=True)
    save_backup(Path(sys.argv[1]), say=say, using=alias)

export(write)
"""


@pytest.fixture
def servers() -> Iterator[tuple[PostgresqlServer, PostgresqlServer]]:
    """A primary and its standby. The standby cancels whatever keeps it from replaying."""
    programs = postgresql_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with TemporaryDirectory(prefix="pushhub-replica-", dir=TEMPORARY, ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        for folder in ("primary", "standby"):
            (Path(name) / folder).mkdir()
        options = "-c fsync=off -c autovacuum=off -c max_standby_streaming_delay=0"
        primary = PostgresqlServer(Path(name) / "primary", bin_folder=programs, options=options)
        primary.create()
        primary.start()
        standby = primary.create_standby(Path(name) / "standby")
        try:
            standby.start()
            yield primary, standby
        finally:
            primary.stop()
            if (standby.data / "postmaster.pid").exists():
                standby.stop()


class Console:
    """A browser that is signed in as the first superuser."""

    def __init__(self, pushhub: Running) -> None:
        self._api = pushhub.api
        self._session = requests.Session()
        self._session.get(f"{self._api}/admin/login/", timeout=60)
        [password] = re.findall(r"admin  (\S+)\n", pushhub.printed())
        assert self.post("/admin/login/", username="admin", password=password, next="/admin/").status_code == 200

    def post(self, path: str, **fields: str) -> requests.Response:
        token = {"csrfmiddlewaretoken": self._session.cookies["pushhub_csrf"]}
        return self._session.post(f"{self._api}{path}", data=fields | token, timeout=60)

    def get(self, path: str, *, pinned: bool = False) -> requests.Response:
        """Return a page: with `pinned` as right after a change in this browser, else as long afterwards."""
        cookies = {cookie.name: str(cookie.value) for cookie in self._session.cookies}
        if not pinned:
            del cookies[PINNED]
        response = requests.get(f"{self._api}{path}", cookies=cookies, timeout=60, allow_redirects=False)
        assert response.status_code == 200, path
        return response

    def live(self, *, pinned: bool = False) -> tuple[str, bool]:
        """Return the undelivered messages that the subscription's page shows, and whether it tells their age."""
        shown = self.get(f"{STATE}live/", pinned=pinned).json()
        return shown["figures"]["undelivered"], NOTICE in shown["parts"]["age"]


def publish(pushhub: Running, count: int) -> None:
    pushhub.post("topics/orders:publish", {"messages": [{"data": "aGk="}] * count})


def readiness(pushhub: Running) -> tuple[int, dict[str, Any]]:
    answer = requests.get(f"{pushhub.api}/readyz", timeout=60)
    component: dict[str, Any] = answer.json()["components"]["replica"]
    return answer.status_code, component


def assert_told_behind(pushhub: Running, settings: dict[str, str]) -> None:
    status, component = readiness(pushhub)
    assert (status, component["status"]) == (200, "degraded")
    assert component["reason"].startswith("it is behind by ")
    doctor = run("-m", "pushhub.doctor", variables=settings)
    assert "it is behind by" in doctor, doctor
    check = run("-m", "pushhub.runtime.processes", "web", "--check", variables=settings)
    assert check.startswith("read replica: it is behind by "), check


def series(pushhub: Running) -> int:
    """Return how many time series the metric of outstanding messages has."""
    metric = "pubsub.googleapis.com/subscription/num_outstanding_messages"
    span = {"interval.startTime": "2021-01-01T00:00:00Z", "interval.endTime": "2021-01-01T00:10:00Z"}
    parameters = {"filter": f'metric.type = "{metric}"', **span}
    answer = requests.get(f"{pushhub.api}/v3/projects/demo/timeSeries", params=parameters, timeout=60)
    assert answer.status_code == 200, answer.text
    return len(answer.json().get("timeSeries", []))


GAUGE = (
    "INSERT INTO deliveries_gaugeminute (project, resource, at, undelivered, oldest_unacked_seconds, outstanding,"
    " push_window, backoff_ms, unserved, open_streams)"
    " VALUES ('demo', 'projects/demo/subscriptions/pull', '2021-01-01 00:05:00+00', 1, 1, 1, 1, 1, 0, 0)"
)


def test_the_console_and_metrics_read_the_replica_and_do_without_it(
    servers: tuple[PostgresqlServer, PostgresqlServer], tmp_path: Path
) -> None:
    primary, standby = servers
    variables = environment(
        tmp_path, PUSHHUB_DATABASE_URL=primary.url, PUSHHUB_REPLICA_URL=standby.url, PUSHHUB_WEB_WORKERS="1"
    )
    with running(variables) as pushhub:
        console = Console(pushhub)
        pushhub.put("topics/orders", {})
        pushhub.put("subscriptions/pull", {"topic": "projects/demo/topics/orders"})
        publish(pushhub, 3)
        wait_for(lambda: console.live() == ("3", False), what="the standby")
        assert readiness(pushhub)[1]["status"] == "ok"
        # Given a standby that stands still
        standby.execute("SELECT pg_wal_replay_pause()")
        publish(pushhub, 2)
        primary.execute(GAUGE)
        # Then pages and metrics have what it has, and pages soon tell how old that is
        assert (console.live()[0], series(pushhub)) == ("3", 0)
        wait_for(lambda: console.live() == ("3", True), what="the notice")
        for page in ("/admin/", "/admin/deliveries/delivery/overview/", STATE, "/admin/subscriptions/subscription/"):
            assert console.get(page).text.count(NOTICE) == 1, page
        assert (console.live()[0], series(pushhub)) == ("3", 0)
        # and who has just changed something sees it, as do forms
        console.post("/admin/deliveries/delivery/act/1/snapshot/", snapshot_id="before")
        assert "projects/demo/snapshots/before" in console.get(STATE, pinned=True).text
        assert console.live(pinned=True) == ("5", False)
        form = console.get("/admin/subscriptions/subscription/1/change/")
        assert NOTICE not in form.text
        # and it is ready, but says what is wrong, as do the doctor and the health check
        assert_told_behind(pushhub, variables | DEVELOPMENT_DEFAULTS)
        # When it goes on
        standby.execute("SELECT pg_wal_replay_resume()")
        wait_for(lambda: (*console.live(), series(pushhub)) == ("5", False, 1), what="the standby that goes on")
        # When it is killed
        standby.stop()
        publish(pushhub, 1)
        # Then the primary answers all the same
        assert console.live() == ("6", False)
        assert series(pushhub) == 1
        assert "pushhub_component_up" in requests.get(f"{pushhub.api}/metrics", timeout=60).text
        status, component = readiness(pushhub)
        assert (status, component["status"]) == (200, "degraded")
        # with one line in the log
        for _ in range(20):
            assert console.live() == ("6", False)
        assert pushhub.printed().count("is not read, but the primary") == 1, pushhub.printed()
        assert "Traceback" not in pushhub.printed()
        # and when it is back, it is read again
        standby.start()
        wait_for(lambda: readiness(pushhub)[1]["status"] == "ok", what="the standby that is back")
        standby.execute("SELECT pg_wal_replay_pause()")
        publish(pushhub, 1)
        assert console.live()[0] == "6"


def run(*words: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=variables | {"DJANGO_SETTINGS_MODULE": "pushhub.settings"}, text=True,
        stdout=subprocess.PIPE, check=False,
    )  # fmt: skip
    return done.stdout


def test_a_backup_that_the_replica_cancels_is_written_from_the_primary(
    servers: tuple[PostgresqlServer, PostgresqlServer], tmp_path: Path
) -> None:
    primary, standby = servers
    variables = environment(tmp_path, PUSHHUB_DATABASE_URL=primary.url, PUSHHUB_REPLICA_URL=standby.url)
    variables |= DEVELOPMENT_DEFAULTS | {"DJANGO_SETTINGS_MODULE": "pushhub.settings"}
    run("manage.py", "migrate", variables=variables)
    # Given a backup within its snapshot on the replica, which has waited for all that is committed
    command = [sys.executable, "-c", BACKUP, str(tmp_path / "backup")]
    with subprocess.Popen(command, cwd=ROOT, env=variables, text=True, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "from replica\n"
        first = process.stdout.readline()
        # When rows go for good that the snapshot still sees
        primary.execute("DELETE FROM auth_permission")
        primary.vacuum("auth_permission")
        conflicts = "SELECT sum(confl_snapshot) FROM pg_stat_database_conflicts"
        wait_for(lambda: standby.execute(conflicts)[0][0] > 0, what="the conflict with the recovery")
        printed, told = process.communicate("\n" * 200, timeout=120)
        # Then it is written anew, from the primary
        assert process.returncode == 0, told
    assert first and "from default\n" in printed
    assert "is not read, but the primary" in told
    assert "Traceback" not in told
    assert (tmp_path / "backup").stat().st_size > 0


@pytest.fixture
def pooled(servers: tuple[PostgresqlServer, PostgresqlServer]) -> Iterator[str]:
    """The address of the standby behind a PgBouncer in transaction mode."""
    if pgbouncer() is None:
        pytest.skip("PgBouncer is not installed")
    standby = servers[1].folder
    with in_front_of(standby, standby.parent / "pooler", mode="transaction") as url:
        yield url


#: When the backup has begun to look how far the standby is.
LOOKS = "SELECT query_start FROM pg_stat_activity WHERE query LIKE 'SELECT CASE WHEN pg_is_in_recovery()%'"


def test_a_backup_has_all_that_was_committed_when_it_began(
    servers: tuple[PostgresqlServer, PostgresqlServer], pooled: str, tmp_path: Path
) -> None:
    primary, standby = servers
    variables = environment(tmp_path, PUSHHUB_DATABASE_URL=primary.url, PUSHHUB_REPLICA_URL=pooled)
    variables |= DEVELOPMENT_DEFAULTS
    run("manage.py", "migrate", variables=variables)
    wait_for(lambda: bool(standby.execute("SELECT to_regclass('auth_group')")[0][0]), what="the standby")
    standby.execute("SELECT pg_wal_replay_pause()")
    primary.execute("INSERT INTO auth_group (name) VALUES ('late')")
    command = [sys.executable, "manage.py", "backup", str(tmp_path / "backup")]
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=PIPE, stderr=PIPE, text=True) as process:
        looks = set()

        def has_looked_again() -> bool:
            assert process.poll() is None, "it did not wait for the standby"
            looks.update(standby.execute(LOOKS))
            return len(looks) > 2

        wait_for(has_looked_again, what="further looks at the standby")
        standby.execute("SELECT pg_wal_replay_resume()")
        _, told = process.communicate(timeout=120)
        assert process.returncode == 0, told
    assert "auth_group: 1 rows" in told
    assert "is not read" not in told
