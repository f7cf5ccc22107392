"""What the sweeps delete, and what they must keep."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deliveries.backlog import reconcile
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import ArchivedMessage, ArchiveLeftover, Delivery, Message
from deliveries.pull import leasing
from deliveries.retention import sweep
from deliveries.rules.ids import first_id_at
from deliveries.store import messagerows, statements
from deliveries.telemetry.events import Settled
from subscriptions.models import Subscription
from tests.lanes import are_known
from tests.restapi import Api

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
HOUR_MS = 3_600_000


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.put("topics/orders")
    return api


def subscribe(api: Api, name: str, **fields: Any) -> Subscription:
    assert api.put(f"subscriptions/{name}", {"topic": TOPIC} | fields).status == 200
    return Subscription.objects.get(subscription_id=name)


def stored(age_ms: int, *owed_to: Subscription, count: int = 1) -> list[int]:
    """Store messages of that age, each with a delivery for every subscription in `owed_to`."""
    first = first_id_at(time.time_ns() // 1_000_000 - age_ms)
    ids = list(range(first, first + count))
    statements.insert_messages([(i, 1, "local", b"x", "", "") for i in ids])
    statements.insert_deliveries([(i, owner.pk, "local", 0, "") for i in ids for owner in owed_to])
    return ids


def test_a_message_stays_until_the_last_subscription_has_it(api: Api) -> None:
    slow = subscribe(api, "slow")
    [owed] = stored(HOUR_MS, slow)
    stored(2 * HOUR_MS)
    assert sweep.sweep_settled() == 1
    assert list(Message.objects.values_list("pk", flat=True)) == [owed]


def test_a_message_that_was_just_published_stays(api: Api) -> None:
    stored(0)
    assert sweep.sweep_settled() == 0
    assert Message.objects.count() == 1


def test_the_sweep_goes_on_where_it_stopped_and_begins_anew_at_the_end(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "RANGE_SIZE", 10)
    monkeypatch.setattr(sweep, "IDLE_RANGES", 1)
    stored(3 * HOUR_MS, subscribe(api, "slow"), count=25)
    stored(HOUR_MS, count=5)
    swept = [sweep.sweep_settled() for _ in range(4)]
    assert sum(swept) == 5
    assert Message.objects.count() == 25


def test_a_backlog_does_not_keep_the_sweep_from_what_is_settled_meanwhile(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "RANGE_SIZE", 10)
    monkeypatch.setattr(sweep, "IDLE_RANGES", 1)
    stored(3 * HOUR_MS, subscribe(api, "slow"), count=45)
    assert sweep.sweep_settled() == 0
    for age_ms in (HOUR_MS, HOUR_MS // 2):
        stored(age_ms, count=5)
        assert sweep.sweep_settled() == 5


def test_a_delivery_past_its_subscriptions_retention_is_dropped(api: Api) -> None:
    short = subscribe(api, "short", messageRetentionDuration="600s")
    long = subscribe(api, "long")
    stored(HOUR_MS, short, long)
    [fresh] = stored(60_000, short)
    assert sweep.sweep_expired() == 1
    assert list(Delivery.objects.filter(subscription=short).values_list("message_id", flat=True)) == [fresh]
    assert Delivery.objects.filter(subscription=long).count() == 1


@pytest.mark.parametrize("is_pulled", [True, False])
def test_messages_that_nobody_pulled_in_time_are_reported(
    api: Api, monkeypatch: pytest.MonkeyPatch, is_pulled: bool
) -> None:
    """The console would say that nothing was lost."""
    events: list[Any] = []
    monkeypatch.setattr(leasing if is_pulled else sweep, "observe", events.extend)
    short = subscribe(api, "short", messageRetentionDuration="600s")
    expired = stored(HOUR_MS, short, count=3)
    [fresh] = stored(60_000, short)
    reconcile.audit()
    lane = Lane(short.pk, "local")
    pull = {"maxMessages": 10, "returnImmediately": True}
    if not is_pulled:
        # So that Redis has them
        monkeypatch.setattr(leasing, "_still_owed", lambda lane, push_settings, candidates: set(candidates))
        [received, *_] = api.post("subscriptions/short:pull", pull).body["receivedMessages"]
        nack = {"ackIds": [received["ackId"]], "ackDeadlineSeconds": 0}
        api.post("subscriptions/short:modifyAckDeadline", nack)
        monkeypatch.undo()
        monkeypatch.setattr(sweep, "observe", events.extend)
        assert sweep.sweep_expired() == 3
        assert are_known(default_backlog(), lane, expired) == [False, True, True], "leases go on"
    else:
        [received] = api.post("subscriptions/short:pull", pull).body["receivedMessages"]
        assert received["message"]["messageId"] == str(fresh)
    [event] = [event for event in events if isinstance(event, Settled)]
    assert sorted(event.ids) == expired
    assert (event.event, event.reason) == ("drop", "expired")
    assert list(Delivery.objects.values_list("message_id", flat=True)) == [fresh]


def test_with_archiving_on_only_archived_messages_are_deleted(api: Api, settings: Any) -> None:
    """Given messages that are archived, claimed by a write that goes on, and neither, among them older ones that were
    committed later, when the sweep looks, then only the archived ones go.
    """
    settings.ARCHIVING = True
    archived, claimed = stored(HOUR_MS, count=3), stored(HOUR_MS // 2, count=2)
    write, going_on = ArchiveLeftover.objects.create(token="a"), ArchiveLeftover.objects.create(token="b")
    messagerows.insert_archived(write_id=write.pk, message_ids=archived)
    messagerows.insert_archived(write_id=going_on.pk, message_ids=claimed)
    write.delete()
    late = stored(2 * HOUR_MS, count=2)
    assert messagerows.messages_unarchived(after_id=0, limit=10) == late
    assert messagerows.oldest_unarchived() == late[0]

    assert sweep.sweep_settled() == 3

    assert sorted(Message.objects.values_list("pk", flat=True)) == sorted([*late, *claimed])
    assert sorted(ArchivedMessage.objects.values_list("pk", flat=True)) == claimed
    assert messagerows.insert_existing_archived([*late, *archived]) == 2
    assert messagerows.oldest_unarchived() == claimed[0]
    assert sweep.sweep_settled() == 2
