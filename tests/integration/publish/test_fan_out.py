"""Publishing to many subscriptions: other tenants publish in between, and it is still all or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from deliveries.backlog.reconcile import audit
from deliveries.models import Delivery, Message, PendingPublish
from deliveries.publish import storing
from deliveries.publish.service import publish_message
from deliveries.pull.leasing import pull_messages
from deliveries.retention.seeking import seek_subscription
from deliveries.retention.snapshots import create_snapshot
from deliveries.rules.payload import NewMessage
from deliveries.store import fanout, statements
from pushhub.common.clock import utcnow
from pushhub.common.errors import ResourceExhausted
from pushhub.common.tenantpool import TenantPool
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription
from subscriptions.services.topics import create_topic
from tests.ports import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

LOUD, QUIET = "projects/loud/topics/events", "projects/quiet/topics/events"
SUBSCRIBERS = 12
MESSAGES = [NewMessage(b"x", {"kind": "a", "n": str(number)}) for number in range(1000)]


@pytest.fixture(autouse=True)
def tenants(redis_url: str) -> None:
    """A loud tenant with many filtered subscriptions, and a quiet one."""
    create_topic(name=LOUD, topic={})
    for number in range(SUBSCRIBERS):
        subscribe(f"projects/loud/subscriptions/loud-{number}", LOUD, filter='attributes.kind = "a"')
    create_topic(name=QUIET, topic={})
    subscribe("projects/quiet/subscriptions/quiet", QUIET)


def subscribe(name: str, topic: str, **more: str) -> None:
    create_subscription(name=name, subscription={"topic": topic, **more})


def publish(topic: str, messages: list[NewMessage]) -> list[str]:
    return publish_message(topic=get_topic(name=topic), messages=messages)


def in_thread(work: Callable[[], Any]) -> Any:
    def closing() -> Any:
        try:
            return work()
        finally:
            connection.close()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(closing).result(timeout=60)


@pytest.fixture
def inserts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Record the number of rows of each insert of deliveries."""
    seen: list[int] = []
    real = statements.insert_deliveries

    def insert(rows: Any) -> None:
        seen.append(len(rows))
        real(rows)

    monkeypatch.setattr("deliveries.store.statements.insert_deliveries", insert)
    yield seen


def fail_at(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """Let an insert of deliveries raise, by its number counted from 1."""
    count, real = 0, statements.insert_deliveries

    def insert(rows: Any) -> None:
        nonlocal count
        count += 1
        if count == number:
            raise error
        real(rows)

    monkeypatch.setattr("deliveries.store.statements.insert_deliveries", insert)


def between_slices(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Any]) -> None:
    """Do `work` once in another thread after the first slice, where a large publish pauses for other writers."""
    if connection.vendor != "sqlite":
        pytest.xfail("PostgreSQL has many writers, so it stores a large publish in one transaction")
    done, publisher = threading.Event(), threading.current_thread()

    def pause(seconds: float) -> None:
        if threading.current_thread() is publisher and not done.is_set():
            done.set()
            in_thread(work)

    monkeypatch.setattr(fanout, "sleep", pause)


def test_another_tenant_publishes_while_a_large_publish_is_stored(inserts: list[int]) -> None:
    seen_at: list[int] = []

    def quiet() -> None:
        try:
            wait_for(lambda: inserts, what="the large publish")
            publish(QUIET, [NewMessage(b"hello", {})])
            # The other tenant's own insert is among them.
            seen_at.append(sum(inserts) - 1)
        finally:
            connection.close()

    other = threading.Thread(target=quiet)
    other.start()
    ids = publish(LOUD, MESSAGES)
    other.join(timeout=60)
    assert seen_at and seen_at[0] < SUBSCRIBERS * len(MESSAGES)
    assert Message.objects.count() == len(ids) + 1
    assert Delivery.objects.count() == SUBSCRIBERS * len(ids) + 1


def test_a_transaction_inserts_a_bounded_number_of_rows(inserts: list[int]) -> None:
    publish(LOUD, MESSAGES)
    assert len(inserts) > 1
    assert max(inserts) <= fanout.SLICE_ROWS
    assert not PendingPublish.objects.exists()


def test_each_subscription_is_owed_its_messages_in_publish_order() -> None:
    ids = [int(message_id) for message_id in publish(LOUD, MESSAGES)]
    assert ids == sorted(ids)
    for subscription in Subscription.objects.filter(topic__topic_id="events", project__project_id="loud"):
        owed = Delivery.objects.filter(subscription=subscription).order_by("message_id")
        assert list(owed.values_list("message_id", flat=True)) == ids
        received = pull_messages(subscription=subscription, max_messages=10)
        assert [int(entry.message["messageId"]) for entry in received] == ids[:10]


@pytest.mark.parametrize("error", [OperationalError("the disk is full"), KeyboardInterrupt()], ids=["error", "stop"])
def test_a_large_publish_that_fails_half_way_leaves_nothing(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, 2, error)
    with pytest.raises(type(error)):
        publish(LOUD, MESSAGES)
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()
    assert not PendingPublish.objects.exists()


def test_the_rows_of_a_crashed_publish_are_invisible_and_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    if connection.vendor != "sqlite":
        pytest.xfail("on PostgreSQL a crash rolls the one transaction back")
    fail_at(monkeypatch, 2, SystemExit())
    with monkeypatch.context() as crashed, pytest.raises(SystemExit):
        crashed.setattr(fanout, "_remove", lambda pending: None)
        publish(LOUD, MESSAGES)
    assert Delivery.objects.count() == fanout.SLICE_ROWS
    subscription = Subscription.objects.get(subscription_id="loud-0")
    assert pull_messages(subscription=subscription, max_messages=10) == []
    assert fanout.remove_abandoned() == 0  # the publisher might be alive
    assert fanout.remove_abandoned(clock=lambda: utcnow() + timedelta(minutes=5)) == 1
    assert not Delivery.objects.exists()
    assert not PendingPublish.objects.exists()


def test_a_publish_that_was_declared_dead_does_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    later = lambda: utcnow() + timedelta(minutes=5)  # noqa: E731
    between_slices(monkeypatch, lambda: fanout.remove_abandoned(clock=later))
    with pytest.raises(Exception, match="took too long"):
        publish(LOUD, MESSAGES)
    assert not Message.objects.exists()
    assert not Delivery.objects.exists()


def test_no_delivery_of_an_incomplete_publish_is_pulled_or_counted_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    subscription = Subscription.objects.get(subscription_id="loud-0")
    seen: list[Any] = []

    def look() -> None:
        assert Delivery.objects.filter(subscription=subscription).exists()
        monkeypatch.setattr("deliveries.backlog.reconcile.GRACE_MS", -60_000)
        seen.append(pull_messages(subscription=subscription, max_messages=10))
        audit()  # the first audit tells Redis of every lane
        seen.append(audit())

    between_slices(monkeypatch, look)
    publish(LOUD, MESSAGES)
    assert seen == [[], 0]
    assert len(pull_messages(subscription=subscription, max_messages=10)) == 10


def test_a_snapshot_made_meanwhile_includes_all_of_the_publish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deliveries.retention.snapshots.COMMITTING_MS", 0)
    name, snapshot = "projects/loud/subscriptions/loud-0", "projects/loud/snapshots/meanwhile"
    between_slices(monkeypatch, lambda: create_snapshot(name=snapshot, request={"subscription": name}))
    ids = publish(LOUD, MESSAGES)
    seek_subscription(name=name, request={"snapshot": snapshot})
    assert Delivery.objects.filter(subscription__subscription_id="loud-0").count() == len(ids)


def test_a_filter_is_evaluated_once_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = storing.matcher

    def counting(text: str) -> Any:
        passes = real(text)
        return lambda attributes: asked.append(attributes["n"]) or passes(attributes)

    monkeypatch.setattr(storing, "matcher", counting)
    publish(LOUD, MESSAGES[:20])
    assert len(asked) == 20
    assert Delivery.objects.count() == SUBSCRIBERS * 20


def test_a_publish_with_more_deliveries_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "MAX_DELIVERIES", 20 * SUBSCRIBERS)
    publish(LOUD, MESSAGES[:20])
    with pytest.raises(ResourceExhausted, match="more than 240 deliveries"):
        publish(LOUD, MESSAGES[:21])
    assert Message.objects.count() == 20


def test_large_publishes_leave_the_threads_to_others_and_beyond_a_few_are_refused() -> None:
    with TenantPool("web", 1, most=3, most_waiting=9, most_aside=1, at_end=connections.close_all) as pool:
        with storing._large_request_lock:
            large = [pool.submit("loud", lambda: publish(LOUD, MESSAGES)) for _ in range(2)]
            pool.submit("quiet", lambda: publish(LOUD, MESSAGES[:20])).result(60)
            assert Message.objects.count() == 20
            wait_for(lambda: any(future.done() for future in large), what="the refusal of one")
        [error] = [error for future in large if (error := future.exception(60)) is not None]
    assert isinstance(error, ResourceExhausted)
    assert Message.objects.count() == 20 + len(MESSAGES)


def test_ids_of_large_publishes_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes may draw the same ids in one millisecond; a delivery must never meet a stranger's message."""
    with transaction.atomic():
        taken = fanout._begin(10, after=0)
    real, clash = fanout._message_ids.take, [taken.ids]
    monkeypatch.setattr(fanout._message_ids, "take", lambda *a, **k: clash.pop() if clash else real(*a, **k))
    assert set(fanout._begin(10, after=0).ids).isdisjoint(taken.ids)
    assert not clash
