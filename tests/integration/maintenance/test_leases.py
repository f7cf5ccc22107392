"""The leases of timed tasks."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery.fixups.django import DjangoWorkerFixup
from celery.signals import task_postrun, task_prerun
from django.db import connection

from deliveries.backlog import timed as timed_tasks
from deliveries.rules.shards import SHARDS
from pushhub import leases
from pushhub.celery import app
from pushhub.leases import TimedTask, held
from tests.leftovers import redis_client
from tests.ports import wait_for
from tests.workers import Worker

KEY = "ph:lease:sweep"


def test_one_process_at_a_time_holds_a_lease(redis_url: str) -> None:
    with held("sweep") as is_held, held("sweep") as is_held_twice, held("audit") as other:
        assert (is_held, is_held_twice, other) == (True, False, True)
    with held("sweep") as is_held_again:
        assert is_held_again


def test_a_lease_is_renewed_for_as_long_as_the_block_takes(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    client = redis_client(redis_url)
    with held("sweep"):
        token = client.get(KEY)
        client.pexpire(KEY, 30_000)
        wait_for(lambda: client.pttl(KEY) <= 300, what="the renewal")
        assert client.get(KEY) == token


def test_a_late_holder_does_not_end_the_lease_of_its_successor(redis_url: str) -> None:
    client = redis_client(redis_url)
    with held("sweep") as is_held:
        assert is_held
        client.set(KEY, "of another process")
    assert client.get(KEY) == b"of another process"


def test_a_task_that_another_process_runs_is_dropped(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[Any, ...]] = []

    @app.task(name="tests.timed", shared=False)
    def timed(*args: Any) -> None:
        runs.append(args)

    try:
        assert isinstance(timed, TimedTask)
        client = redis_client(redis_url)
        client.set("ph:lease:tests.timed.1", "of another process")
        for shard in (0, 1):
            timed.apply((shard,), throw=True)
        assert runs == [(0,)]
    finally:
        app.tasks.pop("tests.timed")


def test_a_task_is_done_when_it_has_succeeded(redis_url: str) -> None:
    @app.task(name="tests.failing", shared=False)
    def failing(shard: int) -> None:
        if shard:
            raise ValueError

    client = redis_client(redis_url)
    try:
        for shard in (0, 1):
            timed_tasks.note_sent(client, f"tests.failing.{shard}")
            failing.apply((shard,))
    finally:
        app.tasks.pop("tests.failing")
    assert client.zrange(timed_tasks.KEY, 0, -1) == [b"tests.failing.1"]


def test_no_task_of_the_schedule_is_without_a_lease() -> None:
    app.loader.import_default_modules()
    for entry in app.conf.beat_schedule.values():
        assert isinstance(app.tasks[entry["task"]], TimedTask), entry["task"]


def test_a_lease_survives_an_outage_of_redis(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LEASE_SECONDS", 0.3)
    lost: list[str] = []
    reacquire = redis.lock.Lock.reacquire

    def fail_first(self: Any) -> Any:
        if not lost:
            lost.append(self.name)
            raise redis.ConnectionError
        return reacquire(self)

    monkeypatch.setattr(redis.lock.Lock, "reacquire", fail_first)
    client = redis_client(redis_url)
    with held("sweep"):
        client.pexpire(KEY, 30_000)
        wait_for(lambda: client.pttl(KEY) <= 300, what="the renewal after an error")


#: A worker whose audits end when Redis has the key `go`, and say where they ran.
SLOW = """
import os, time
from deliveries.backlog import reconcile
from deliveries.backlog.connection import redis_client

def audit(known=None, *, shard=None):
    redis_client().rpush("ran", f"{os.getpid()}.{shard}")
    while not redis_client().exists("go"):
        time.sleep(0.01)
    return 0

reconcile.audit = audit
"""


def test_two_workers_share_the_shards_and_one_goes_on_for_a_killed_one(transactional_db: None, redis_url: str) -> None:
    client = redis_client(redis_url)

    def ran() -> list[tuple[int, int]]:
        return [(int(pid), int(shard)) for pid, shard in (row.split(b".") for row in client.lrange("ran", 0, -1))]

    def send() -> None:
        with app.connection_for_write() as connection:
            for shard in range(SHARDS):
                app.send_task("deliveries.backlog_audit", (shard,), connection=connection)

    first = "from pushhub import leases; leases.LEASE_SECONDS = 1.0" + SLOW
    workers = [Worker(redis_url, name=f"maintenance-{name}", queue="maintenance", first=first) for name in "ab"]
    with workers[0], workers[1]:
        # Given two workers, when the audits of all shards are sent, then each works on a shard of its own
        send()
        wait_for(lambda: len(ran()) == 2, what="a shard in each worker")
        assert {pid for pid, _ in ran()} == {worker.process.pid for worker in workers}
        assert len({shard for _, shard in ran()}) == 2
        # When one is killed, then the other one audits its shard as well, once that one's lease has ended
        killed_pid, shard = ran()[0]
        next(worker for worker in workers if worker.process.pid == killed_pid).kill()
        client.set("go", 1)
        wait_for(lambda: not client.exists(f"ph:lease:deliveries.backlog_audit.{shard}"), what="the end of the lease")
        send()
        wait_for(lambda: len({other for pid, other in ran() if pid != killed_pid}) == SHARDS, what="all shards")


@pytest.mark.django_db(transaction=True)
def test_a_worker_keeps_its_connection_to_the_database_until_it_breaks() -> None:
    celery = DjangoWorkerFixup(app)
    connection.ensure_connection()
    first = connection.connection
    for _ in range(2):
        task_prerun.send(sender=None)
        celery.close_database()
        task_postrun.send(sender=None)
    assert connection.connection is first

    connection.close_at = 0.0  # as after an outage
    task_prerun.send(sender=None)
    assert connection.connection is None


#: A machine of its own, whose worker says which machine's journals it has sealed. Two tasks are sent a round.
MACHINE = """
import socket
socket.gethostname = lambda: {name!r}
from deliveries.backlog.connection import redis_client
from deliveries.telemetry.journal import upkeep
upkeep.seal_journals = lambda: redis_client().rpush("sealed", {name!r})
from pushhub import beat, celery
beat.LEASE_SECONDS, beat.LOOK_SECONDS = 1.0, 0.1
entries = ("journals-seal", "regions-audit")
celery.app.conf.beat_schedule = {{name: celery.app.conf.beat_schedule[name] | {{"schedule": 0.2}} for name in entries}}
"""


def test_every_machine_gets_the_tasks_about_its_files_whoever_sends_them(
    transactional_db: None, redis_url: str
) -> None:
    client = redis_client(redis_url)
    with ExitStack() as stack:
        # Given two machines, of which one has a worker that sends tasks
        for name in ("a", "b"):
            code = MACHINE.format(name=name)
            stack.enter_context(Worker(redis_url, name=name, queue="maintenance", beat=name == "a", first=code))

        # Then each of them seals its own journals whenever a task is sent, and not whichever takes it first
        def sealed(name: str) -> int:
            return client.lrange("sealed", 0, -1).count(name.encode())

        wait_for(lambda: sealed("a") and sealed("b"), what="both machines")
        before = sealed("a"), sealed("b")
        wait_for(lambda: sum(map(sealed, "ab")) - sum(before) >= 40, what="40 tasks")
        assert abs((sealed("a") - before[0]) - (sealed("b") - before[1])) <= 3
