"""Commits that wait for the disk, and those that need not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.db import Error, connection, transaction
from django.test.utils import CaptureQueriesContext

from deliveries import activity
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.pull.leasing import pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.push.results.settler import settle_now
from deliveries.push.sending.delivery import PushDelivery
from deliveries.rules.outcome import Verdict
from deliveries.rules.taskmessage import DeliverTask
from deliveries.store import statements, trial, writelock
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow
from pushhub.common.outages import Cause, outage_of
from subscriptions.models import Project
from subscriptions.selectors import read_subscription
from subscriptions.services import projects, topics
from tests.beside import Beside
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

PUSHED = {"topic": "projects/shop/topics/orders", "pushConfig": {"pushEndpoint": "https://push.example.com/"}}


@pytest.fixture(autouse=True)
def commits_wait(settings: Any, transactional_db: None) -> Iterator[None]:
    """Let commits wait for the disk as outside of tests; tests/settings.py has them not wait."""
    if connection.vendor != "sqlite":
        yield
        return
    before = settings.SQLITE_SYNCHRONOUS
    settings.SQLITE_SYNCHRONOUS = "FULL"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=FULL")
        yield
        cursor.execute(f"PRAGMA synchronous={before}")


def waits_for_the_disk() -> bool:
    statement = "PRAGMA synchronous" if connection.vendor == "sqlite" else "SHOW synchronous_commit"
    with connection.cursor() as cursor:
        cursor.execute(statement)
        [level] = cursor.fetchone()
    return level in (2, "on")


def test_a_commit_waits_for_the_disk_unless_it_may_be_undone() -> None:
    with write_transaction():
        assert waits_for_the_disk()
    with write_transaction(durable=False):
        assert not waits_for_the_disk()
    assert waits_for_the_disk()


def test_after_an_error_the_next_commit_waits_again() -> None:
    with pytest.raises(LookupError), write_transaction(durable=False):
        raise LookupError
    assert waits_for_the_disk()


def test_what_is_part_of_a_durable_transaction_is_durable() -> None:
    with write_transaction(), write_transaction(durable=False):
        assert waits_for_the_disk()


def test_the_emulator_in_memory_never_waits(settings: Any) -> None:
    if connection.vendor != "sqlite":
        pytest.xfail("the emulator in memory uses SQLite")
    settings.SQLITE_SYNCHRONOUS = "OFF"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA synchronous=OFF")
        try:
            with write_transaction(durable=False):
                [level] = cursor.execute("PRAGMA synchronous").fetchone()
            [level_after] = cursor.execute("PRAGMA synchronous").fetchone()
        finally:
            cursor.execute("PRAGMA synchronous=FULL")
    assert (level, level_after) == (0, 0)


def test_the_note_of_a_use_queues_as_other_writes_do_and_does_not_wait_for_the_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On SQLite, a write beside the queue waits for seconds under load, and so would the results of all pushes."""
    monkeypatch.setattr(activity, "_noted", {})
    with CaptureQueriesContext(connection) as queries:
        activity.note_activity([1])
    assert "synchronous" in queries[0]["sql"] or "synchronous" in queries[1]["sql"]


@pytest.mark.parametrize("exactly_once", [False, True])
def test_acks_wait_for_the_disk_with_exactly_once_delivery_only(redis_url: str, exactly_once: bool) -> None:
    api = Api()
    api.put("topics/orders")
    topic = "projects/shop/topics/orders"
    api.put("subscriptions/pulled", {"topic": topic, "enableExactlyOnceDelivery": exactly_once})
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
    subscription = read_subscription(name="projects/shop/subscriptions/pulled")
    [received] = pull_messages(subscription=subscription, max_messages=1)

    with CaptureQueriesContext(connection) as queries:
        acknowledge_messages(subscription=subscription, ack_ids=[received.ack_id])

    assert any("synchronous" in query["sql"] for query in queries) is not exactly_once


def test_results_of_pushes_do_not_wait_for_the_disk(redis_url: str) -> None:
    api = Api()
    api.put("topics/orders")
    api.put("subscriptions/pushed", PUSHED)
    answer = api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]})
    [message_id] = answer.body["messageIds"]
    subscription = read_subscription(name="projects/shop/subscriptions/pushed")
    task = DeliverTask(subscription.pk, "local", 1, {"messageId": message_id, "data": "aGVsbG8="})
    delivery = PushDelivery(task, "1", batch=None, lane=Lane(subscription.pk, "local"), finish=lambda _: None)
    delivery.verdict = Verdict.ACK

    with CaptureQueriesContext(connection) as queries:
        settle_now([delivery])

    assert any("synchronous" in query["sql"] for query in queries)
    assert not Delivery.objects.exists()


def test_an_impatient_transaction_gives_up_while_another_keeps_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "PATIENCE_SECONDS", 0.05)
    project = Project.objects.create(project_id="shop")
    locked, go_on = Event(), Event()

    def keep() -> None:
        with write_transaction(), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("LOCK TABLE deliveries_message")
            Project.objects.filter(pk=project.pk).update(project_id="kept")
            locked.set()
            go_on.wait(20)
        connection.close()

    keeper = Thread(target=keep)
    keeper.start()
    try:
        assert locked.wait(60)
        with pytest.raises(Error) as refused:
            trial.try_to_store()
        assert outage_of(refused.value) == Cause.DATABASE_BUSY
    finally:
        go_on.set()
        keeper.join(60)
    trial.try_to_store()
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            [milliseconds] = cursor.execute("PRAGMA busy_timeout").fetchone()
            assert milliseconds > 50


@pytest.mark.parametrize("change", ["create_topic", "delete_project"])
def test_changes_of_the_control_plane_queue_as_publishes_do(change: str) -> None:
    """Beside the queue, they would find the database busy until its timeout, while publishes get their turns."""
    if connection.vendor != "sqlite":
        pytest.xfail("PostgreSQL has more than one writer")
    api = Api()
    api.put("topics/orders")

    def administer() -> None:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
        if change == "create_topic":
            topics.create_topic(name="projects/shop/topics/returns", topic={})
        else:
            projects.delete_project(project="shop")

    with write_transaction():
        beside = Beside(administer)
        wait_for(lambda: queue_is_waited_for() or not beside.is_alive(), what="the change to queue")
    beside.end()


def queue_is_waited_for() -> bool:
    inode = Path(f"{connection.settings_dict['NAME']}.turn").stat().st_ino
    return any("-> FLOCK" in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_postgresql_ends_the_transaction_of_a_frozen_worker(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows would be locked until it goes on, and the messages belong to another worker by then."""
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite's lock is for one machine, where a frozen worker holds up all others")
    monkeypatch.setattr(writelock, "FROZEN_MS", 100)
    api = Api()
    api.put("topics/orders")
    api.put("subscriptions/pushed", PUSHED)
    lane: Any = {"subscription_id": read_subscription(name="projects/shop/subscriptions/pushed").pk, "region": "local"}
    api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}] * 2})
    rows = list(Delivery.objects.all())
    nacks = [statements.Nack(**lane, message_id=row.message_id, seek=0, attempts=1, result="500") for row in rows]
    locked, go_on, errors = Event(), Event(), []

    def note_nacks() -> None:
        try:
            with writelock.write_transaction(durable=False):
                statements.note_nacks(nacks, at=utcnow())
                locked.set()
                go_on.wait(600)
                Project.objects.count()
        except Error as error:
            errors.append(outage_of(error))
        finally:
            connection.close()

    frozen = Thread(target=note_nacks)
    frozen.start()
    try:
        assert locked.wait(60)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 60000")
            statements.delete_deliveries(**lane, message_ids=[row.message_id for row in rows])
    finally:
        go_on.set()
        frozen.join(60)
    assert errors == [Cause.DATABASE_BUSY]
    assert not Delivery.objects.exists()
