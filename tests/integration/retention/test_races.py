"""Seeks and snapshots while others sweep, acknowledge and publish in transactions of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from deliveries.models import Delivery, Message, SnapshotMessage
from deliveries.retention import seeking, snapshots
from deliveries.retention import sweep as sweeping
from deliveries.rules.ids import first_id_at
from deliveries.store import statements
from deliveries.store.sql import fetch_rows
from deliveries.store.writelock import write_transaction
from pushhub.common.clock import utcnow
from subscriptions.models import Snapshot, Subscription
from tests.beside import Beside
from tests.integration.retention.test_snapshots import (
    KEPT,
    acknowledge,
    publish,
    received,
    seek,
    snapshot,
    subscribe,
    taken,
)
from tests.integration.retention.test_snapshots import api as api
from tests.ports import wait_for
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

PAST, FUTURE = "1970-01-01T00:00:00Z", "9999-01-01T00:00:00Z"
#: Longer than what the others do takes, unless they wait for the transaction that is held.
HELD_SECONDS = 2.0


class Held:
    """Holds whoever comes to the end of a function, within its transaction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.is_there, self._may_go = threading.Event(), threading.Event()
        function = getattr(module, name)

        def hold(*arguments: Any, **options: Any) -> None:
            function(*arguments, **options)
            self.is_there.set()
            self._may_go.wait(30)

        monkeypatch.setattr(module, name, hold)

    def during(self, call: Callable[[], object]) -> Beside:
        """Let the call begin, and then whoever is held go on."""
        assert self.is_there.wait(30)
        beside = Beside(call)
        beside.join(HELD_SECONDS)
        self._may_go.set()
        return beside


def sweep() -> None:
    for _ in range(3):
        sweeping.sweep_settled()


def test_what_is_acknowledged_while_a_snapshot_is_made_is_in_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot of a large backlog takes seconds, in which a sweep sees neither its rows nor those of the acks."""
    monkeypatch.setattr(snapshots, "COMMITTING_MS", 0)
    monkeypatch.setattr(sweeping, "SETTLED_GRACE_MS", -1000)
    subscribe(api)
    publish(api, "a", "b")
    messages = received(api)
    held = Held(monkeypatch, snapshots, "_exclude_settled")
    creating = Beside(lambda: snapshot(api))

    def acknowledge_and_sweep() -> None:
        acknowledge(Api(), messages)
        sweep()

    held.during(acknowledge_and_sweep).end()
    creating.end()
    seek(api, snapshot=KEPT)
    assert taken(api) == ["a", "b"]


def after_the_first_range(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> None:
    """Let a snapshot include a message a transaction, and call this between the first two."""
    calls = [call]

    @contextmanager
    def transaction_and_call() -> Iterator[None]:
        with write_transaction():
            yield
        if calls:
            calls.pop()()

    monkeypatch.setattr(snapshots, "COMMITTING_MS", 0)
    monkeypatch.setattr(snapshots, "RANGE_SIZE", 1)
    monkeypatch.setattr(snapshots, "write_transaction", transaction_and_call)


def test_others_write_while_a_snapshot_includes_what_waits(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SETTLED_GRACE_MS", -1000)
    subscribe(api)
    publish(api, "included", "acknowledged", "waiting", "last")
    messages = received(api)

    def write() -> None:
        assert not Snapshot.objects.exists()
        acknowledge(api, messages[:2])
        publish(api, "acknowledged, too", "later")
        acknowledge(api, received(api)[:1])
        sweep()

    after_the_first_range(monkeypatch, write)
    snapshot(api)
    seek(api, time=FUTURE)
    sweep()
    seek(api, snapshot=KEPT)
    assert taken(api) == ["included", "waiting", "last", "later"]


def test_what_an_ended_process_included_in_a_snapshot_is_swept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(api)
    publish(api, "a", "b", "c")

    def crash() -> None:
        raise SystemExit

    after_the_first_range(monkeypatch, crash)
    with pytest.raises(SystemExit):
        snapshot(api)
    assert SnapshotMessage.objects.count() == 1
    assert snapshots.sweep_rows() == 0, "it may still be going on"
    monkeypatch.setattr(snapshots, "ABANDONED_MS", -1000)
    assert snapshots.sweep_rows() == 1
    snapshot(api)
    assert snapshots.sweep_rows() == 0


def test_a_snapshot_of_a_subscription_that_is_created_anew_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(api)
    publish(api, "a", "b", "c")

    def create_anew() -> None:
        api.delete("subscriptions/worker")
        subscribe(api)

    after_the_first_range(monkeypatch, create_anew)
    answer = api.put("snapshots/before", {"subscription": "projects/shop/subscriptions/worker"})
    assert answer.error["status"] == "ABORTED"
    assert not Snapshot.objects.exists()


def test_a_message_that_is_swept_while_a_seek_brings_it_back_is_not_owed(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a delivery would count as undelivered, and be looked for in Redis, until its retention ends."""
    monkeypatch.setattr(sweeping, "SETTLED_GRACE_MS", -1000)
    subscribe(api, retainAckedMessages=True)
    publish(api, "a")
    assert taken(api) == ["a"]
    held = Held(monkeypatch, seeking, "_insert_missing")
    sought = Beside(lambda: seek(api, time=PAST))
    # At the edge of its retention, a message may be retained for the seek and no more for the sweep
    monkeypatch.setattr(sweeping, "kept_from", lambda _: {})
    held.during(sweep).end()
    sought.end()
    assert list(Delivery.objects.values_list("message_id")) == list(Message.objects.values_list("pk"))


def late_message(age_ms: int) -> None:
    """Publish with the id of a message that is older by this."""
    row = Subscription.objects.get()
    late = first_id_at(time.time_ns() // 1_000_000 - age_ms)
    with transaction.atomic():
        Message.objects.create(id=late, topic=row.topic, region="local", data=b"late")
        Delivery.objects.create(message_id=late, subscription=row, region="local")


def test_a_publish_that_commits_long_after_a_snapshot_belongs_to_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storing many deliveries takes PostgreSQL longer, or a commit that waits for another server."""
    monkeypatch.setattr(snapshots, "COMMITTING_MS", 0)
    subscribe(api)
    publish(api, "early")
    assert taken(api) == ["early"]
    is_there, may_go = threading.Event(), threading.Event()

    def publish_slowly() -> None:
        with write_transaction():
            late_message(0)
            is_there.set()
            may_go.wait(30)

    publishing = Beside(publish_slowly)
    assert is_there.wait(30)
    time.sleep(0.01)  # what was committed before the snapshot would be older than its boundary
    creating = Beside(lambda: snapshot(api))
    creating.join(HELD_SECONDS)
    may_go.set()
    publishing.end()
    creating.end()
    seek(api, snapshot=KEPT)
    assert taken(api) == ["late"]


def test_what_a_host_publishes_after_a_snapshot_belongs_to_it_though_its_clock_is_behind(api: Api) -> None:
    subscribe(api)
    late_message(120_000)
    seek(api, time=FUTURE)
    snapshot(api)
    late_message(119_000)
    seek(api, snapshot=KEPT)
    assert taken(api) == ["late"]


def test_a_seek_goes_on_where_results_hold_its_rows_in_another_order(api: Api) -> None:
    subscribe(api)
    publish(api, "older", "younger")
    older, younger = Delivery.objects.order_by("message_id")
    sought: list[Beside] = []

    def note_nack(row: Delivery) -> None:
        nack = statements.Nack(row.subscription_id, "local", row.message_id, row.seek, 1, "500")
        statements.note_nacks([nack], at=utcnow())

    def settle() -> None:
        with write_transaction():
            note_nack(younger)
            # It gets the row of the older message, and waits for that of the younger
            sought.append(Beside(lambda: seek(api, time=FUTURE)))
            if connection.vendor == "postgresql":
                wait_for(lambda: fetch_rows("SELECT FROM pg_locks WHERE NOT granted"), what="the seek to wait")
            note_nack(older)

    with suppress(OperationalError):  # PostgreSQL may end this transaction instead
        settle()
    sought[0].end()
    assert not Delivery.objects.exists()
