"""The audit compares all lanes together: what it costs, and that it finds what is missing in any of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from deliveries import tasks
from deliveries.backlog import reconcile
from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import lane_configuration, settings_of
from deliveries.backlog.records import Lane
from deliveries.models import Delivery, Message
from deliveries.retention import sweep
from deliveries.rules.ids import EPOCH_MS, first_id_at
from deliveries.rules.shards import SHARDS
from deliveries.rules.taskmessage import TaskTemplate, escape_message
from deliveries.store import lanerows
from subscriptions.models import Project, Subscription, Topic
from subscriptions.services.subscriptions import detach_subscription
from tests.lanes import mark_alive
from tests.restapi import Api

LANES = 10_000
FIRST = first_id_at(EPOCH_MS + 1_000_000)


@contextmanager
def round_trips(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the requests that are sent to Redis: a pipeline is one."""
    sent: list[str] = []
    connection_class = type(default_backlog().client.connection_pool.make_connection())
    with monkeypatch.context() as patch:
        send = connection_class.send_packed_command

        def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append("request")
            return send(self, *args, **kwargs)

        patch.setattr(connection_class, "send_packed_command", counted)
        yield sent


def make_lanes(count: int, *, each: int = 1) -> list[Lane]:
    """Store push subscriptions with messages that wait in the database; Redis knows their lanes, and no message."""
    project = Project.objects.get(project_id="shop")
    topic = Topic.objects.get()
    Subscription.objects.bulk_create(
        Subscription(
            project=project, topic=topic, subscription_id=f"push-{number}", push_endpoint="http://127.0.0.1:1024/"
        )
        for number in range(count)
    )
    Message.objects.bulk_create(
        Message(id=FIRST + number, topic=topic, region="local", data=b"x") for number in range(each)
    )
    ids = list(Subscription.objects.order_by("id").values_list("id", flat=True))
    Delivery.objects.bulk_create(
        (
            Delivery(message_id=FIRST + number, subscription_id=pk, region="local")
            for pk in ids
            for number in range(each)
        ),
        batch_size=2000,
    )
    lanes = [Lane(pk, "local") for pk in ids]
    settings_by_id = settings_of(ids)
    default_backlog().configure_all(
        lane_configuration(lane, settings_by_id[lane.subscription_id], action="new") for lane in lanes
    )
    return lanes


def page_offer(lane: Lane, *numbers: int) -> None:
    """Put messages into a lane's backlog as if a worker had read them."""
    template = TaskTemplate(subscription_id=lane.subscription_id, region=lane.region, attempt=1, generation="")
    pipe = default_backlog().client.pipeline(transaction=False)
    for number in numbers:
        name = str(FIRST + number)
        pipe.hset(lane.places_key, name, "b")
        pipe.rpush(f"{lane.root}:b", template.render(name, escape_message({"messageId": name, "publishTime": "t"})))
    pipe.execute()


@pytest.fixture
def shop(api: Api, redis_url: str) -> None:
    api.create("topics/orders")
    mark_alive(default_backlog())


def test_a_wipe_while_redis_is_rebuilt_is_noticed(shop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a wiped Redis, and another wipe after it was told of the lanes
    backlog = default_backlog()
    backlog.client.flushall()
    monkeypatch.setattr(backlog, "note_regions", lambda _: backlog.client.flushall())
    reconcile.rebuild()
    # Then it is rebuilt once more
    assert backlog.beat().was_wiped
    monkeypatch.undo()
    reconcile.rebuild()
    assert not backlog.beat().was_wiped


def test_ten_thousand_lanes_are_audited_in_fifty_round_trips(shop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given lanes with a message each, all of which Redis has
    lanes = make_lanes(LANES)
    pipe = default_backlog().client.pipeline(transaction=False)
    for lane in lanes:
        pipe.hset(lane.places_key, str(FIRST), "b")
    pipe.execute()
    # When they are audited
    with round_trips(monkeypatch) as requests, CaptureQueriesContext(connection) as queries:
        for shard in range(SHARDS):
            assert tasks.audit_backlog(shard) == {"orphans": 0, "tokens": 0, "purged": 0}
    # Then that took few statements and requests
    assert len(queries) + len(requests) <= 50, (len(queries), len(requests))


def test_a_delivery_that_is_missing_in_redis_is_found_in_any_lane(shop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given lanes with more messages than the first statement compares, of which Redis lacks one in some lanes
    monkeypatch.setattr(reconcile, "FIRST_IDS", 3)
    monkeypatch.setattr(reconcile, "LANES_CHUNK", 2)
    lanes = make_lanes(5, each=8)
    missing = {lanes[0]: 0, lanes[2]: 2, lanes[3]: 7}
    for lane in lanes:
        page_offer(lane, *(number for number in range(8) if missing.get(lane) != number))
    # When the audit runs
    assert reconcile.audit() == 3
    # Then just these lanes read the database again, from the missing message on
    states = dict(zip(lanes, default_backlog().states(lanes), strict=True))
    spilled = {lane: state.cursor - FIRST for lane, state in states.items() if state is not None and state.spilled}
    assert spilled == missing
    assert reconcile.audit() == 0, "what will come with a page is not missing"


def test_a_delivery_that_is_settled_while_the_audit_runs_is_not_missing(
    shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lanes(3, each=2)
    look = type(default_backlog()).missing

    def look_then_settle(*args: Any) -> Any:
        missing = look(*args)
        Delivery.objects.all().delete()
        return missing

    monkeypatch.setattr(type(default_backlog()), "missing", look_then_settle)
    assert reconcile.audit() == 0


def test_lanes_of_deleted_and_detached_subscriptions_are_purged(shop: None) -> None:
    lanes = make_lanes(4, each=2)
    Subscription.objects.filter(pk=lanes[1].subscription_id).delete()
    detach_subscription(name=Subscription.objects.get(pk=lanes[3].subscription_id).name)
    assert reconcile.purge_gone() == 2
    assert set(Delivery.objects.values_list("subscription_id", flat=True)) == {
        lanes[0].subscription_id,
        lanes[2].subscription_id,
    }


def test_deliveries_that_a_lane_drops_while_the_audit_runs_are_not_missing(
    shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a lane in which two messages wait
    lane = make_lanes(1, each=2)[0]
    page_offer(lane, 0, 1)
    backlog, look = default_backlog(), lanerows.oldest_ids
    settings = settings_of([lane.subscription_id])[lane.subscription_id]

    # When the lane is paused after the audit has read its state, so that Redis forgets what waits
    def pause_then_look(*args: Any, **kwargs: Any) -> Any:
        backlog.configure_all([replace(lane_configuration(lane, settings, action="known"), mode=Mode.IDLE)])
        return look(*args, **kwargs)

    monkeypatch.setattr(lanerows, "oldest_ids", pause_then_look)
    # Then the messages are not missing: they come with pages
    assert reconcile.audit() == 0


def test_a_lane_that_outlives_its_subscription_is_forgotten(shop: None) -> None:
    lanes = make_lanes(2, each=0)
    Subscription.objects.filter(pk=lanes[1].subscription_id).delete()
    assert reconcile.audit() == 0
    assert default_backlog().lanes() == [lanes[0]]


def test_the_sweep_writes_only_where_something_has_expired(shop: None) -> None:
    # Given lanes whose messages are long past their retention, and one whose message is young
    lanes = make_lanes(3)
    young = first_id_at(time.time_ns() // 1_000_000)
    Delivery.objects.filter(subscription_id=lanes[0].subscription_id).update(message_id=young)
    # When they are swept
    with CaptureQueriesContext(connection) as queries:
        assert sweep.sweep_expired() == 2
    # Then there is a transaction for each of those in which something has expired
    assert sum(query["sql"].startswith("DELETE") for query in queries) == 2
    assert list(Delivery.objects.values_list("message_id", flat=True)) == [young]


def test_the_shards_cover_every_lane_once(shop: None) -> None:
    # Given lanes of which Redis lacks each message
    make_lanes(3 * SHARDS)
    # When the shards are audited one after the other, then each repairs its part
    assert [reconcile.audit(shard=shard) for shard in range(SHARDS)] == [3] * SHARDS
    assert reconcile.audit() == 0


def test_a_sweep_that_was_frozen_heeds_a_retention_that_was_prolonged_meanwhile(
    shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a message that is eight days old, one more than its subscription keeps
    lane = make_lanes(1)[0]
    old = first_id_at(time.time_ns() // 1_000_000 - 8 * 86_400_000)
    Delivery.objects.update(message_id=old)
    read = settings_of

    # When a sweep is frozen until the subscription keeps messages for 31 days
    def freeze(ids: Any) -> Any:
        settings_by_id = read(ids)
        Subscription.objects.filter(pk=lane.subscription_id).update(message_retention_seconds=31 * 86_400)
        return settings_by_id

    monkeypatch.setattr(sweep, "settings_of", freeze)
    # Then the message stays
    assert sweep.sweep_expired() == 0
    assert Delivery.objects.count() == 1
