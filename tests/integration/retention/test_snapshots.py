"""Snapshots, seek, retention for both, and subscriptions that expire."""

from __future__ import annotations

import base64
import datetime
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deliveries import activity
from deliveries.inspection.conditions import Condition
from deliveries.inspection.status import subscription_status
from deliveries.models import Delivery, Message, SnapshotMessage
from deliveries.retention import snapshots
from deliveries.retention import sweep as sweeping
from deliveries.rules.ids import first_id_at
from pushhub.common.clock import utcnow
from pushhub.common.protojson import format_timestamp, parse_timestamp
from subscriptions.models import Snapshot, Subscription
from subscriptions.models.iam import AuditEntry
from subscriptions.services.snapshots import sweep_snapshots
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
KEPT = "projects/shop/snapshots/before"
DAY = datetime.timedelta(days=1)


@pytest.fixture
def api(redis_url: str) -> Api:
    api = Api()
    api.create("topics/orders")
    return api


@pytest.fixture(params=[snapshots.COMMITTING_MS, 0], ids=["boundary in the past", "boundary now"])
def boundary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set how far back a snapshot's boundary reaches, so that a test's messages lie on either side of it.

    Each of those before it is a range of its own.
    """
    monkeypatch.setattr(snapshots, "COMMITTING_MS", request.param)
    monkeypatch.setattr(snapshots, "RANGE_SIZE", 1)


def subscribe(api: Api, name: str = "worker", **fields: Any) -> None:
    api.create(f"subscriptions/{name}", {"topic": TOPIC, **fields})


def publish(api: Api, *texts: str, **fields: Any) -> None:
    """Publish each text in a request of its own, at least a millisecond after the one before."""
    for text in texts:
        body = {"messages": [{"data": base64.b64encode(text.encode()).decode(), **fields}]}
        assert api.post("topics/orders:publish", body).status == 200
        moment()


def moment() -> str:
    """Return a time between the messages published before and after the call."""
    time.sleep(0.002)
    now = format_timestamp(utcnow())
    time.sleep(0.002)
    return now


def received(api: Api, name: str = "worker") -> list[Any]:
    body = {"maxMessages": 1000, "returnImmediately": True}
    messages: list[Any] = []
    while True:
        answer = api.post(f"subscriptions/{name}:pull", body)
        assert answer.status == 200, answer
        more = answer.body.get("receivedMessages", [])
        if not more:
            return messages
        messages += more


def texts(messages: list[Any]) -> list[str]:
    return [base64.b64decode(entry["message"]["data"]).decode() for entry in messages]


def acknowledge(api: Api, messages: list[Any], name: str = "worker") -> None:
    if messages:
        body = {"ackIds": [message["ackId"] for message in messages]}
        assert api.post(f"subscriptions/{name}:acknowledge", body).status == 200


def taken(api: Api, name: str = "worker") -> list[str]:
    """Pull and acknowledge everything that waits."""
    messages = received(api, name)
    acknowledge(api, messages, name)
    return texts(messages)


def seek(api: Api, name: str = "worker", **to: str) -> None:
    answer = api.post(f"subscriptions/{name}:seek", to)
    assert (answer.status, answer.body) == (200, {}), answer


def snapshot(api: Api, name: str = "before", **fields: Any) -> Any:
    return api.create(f"snapshots/{name}", {"subscription": WORKER, **fields})


def sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SETTLED_GRACE_MS", -1000)
    sweeping.sweep_expired()
    while sweeping.sweep_settled():
        pass


def test_the_life_of_a_snapshot(api: Api) -> None:
    subscribe(api)
    created = snapshot(api, labels={"team": "a"})
    assert (created["name"], created["topic"], created["labels"]) == (KEPT, TOPIC, {"team": "a"})
    left = parse_timestamp(created["expireTime"], field="x") - utcnow()
    assert 7 * DAY - datetime.timedelta(minutes=1) < left <= 7 * DAY
    assert api.get("snapshots/before").body == created
    assert api.get("snapshots").body == {"snapshots": [created]}
    assert api.get("topics/orders/snapshots").body == {"snapshots": [KEPT]}
    patch = {"snapshot": {"labels": {"team": "b"}}, "updateMask": "labels"}
    assert api.patch("snapshots/before", patch).body == {**created, "labels": {"team": "b"}}
    assert api.put("snapshots/before", {"subscription": WORKER}).error["status"] == "ALREADY_EXISTS"
    assert api.delete("snapshots/before").body == {}
    assert api.get("snapshots/before").status == 404
    assert [entry.action for entry in AuditEntry.objects.filter(resource=KEPT).order_by("pk")] == [
        "create",
        "update",
        "delete",
    ]


@pytest.mark.usefixtures("boundary")
def test_seeking_to_a_snapshot_brings_back_its_unacknowledged_and_all_later_messages(api: Api) -> None:
    subscribe(api)
    publish(api, "acknowledged", "waiting")
    first, second = received(api)
    acknowledge(api, [first])
    snapshot(api)
    acknowledge(api, [second])
    publish(api, "later")
    assert taken(api) == ["later"]
    seek(api, snapshot=KEPT)
    assert taken(api) == ["waiting", "later"]
    seek(api, snapshot=KEPT)
    assert taken(api) == ["waiting", "later"], "it stays"


@pytest.mark.usefixtures("boundary")
def test_a_snapshot_serves_other_subscriptions_of_the_topic(api: Api) -> None:
    subscribe(api)
    subscribe(api, "other")
    publish(api, "one")
    snapshot(api)
    publish(api, "two")
    assert taken(api, "other") == ["one", "two"]
    seek(api, "other", snapshot=KEPT)
    assert taken(api, "other") == ["one", "two"]
    assert taken(api) == ["one", "two"], "the other subscription is unchanged"


def test_a_publish_that_commits_late_belongs_to_the_snapshot(api: Api) -> None:
    """The ids of the publish are older than the snapshot, which could not see its rows."""
    subscribe(api)
    snapshot(api)
    row = Subscription.objects.get()
    late = first_id_at(time.time_ns() // 1_000_000 - 1000)
    Message.objects.create(id=late, topic=row.topic, region="local", data=b"late")
    Delivery.objects.create(message_id=late, subscription=row, region="local")
    seek(api, time=moment())
    assert not Delivery.objects.exists()
    seek(api, snapshot=KEPT)
    assert taken(api) == ["late"]


def test_a_message_that_waits_already_is_owed_once(api: Api) -> None:
    subscribe(api, retainAckedMessages=True)
    then = moment()
    publish(api, "a")
    snapshot(api)
    seek(api, time=then)
    seek(api, snapshot=KEPT)
    assert Delivery.objects.count() == 1


@pytest.mark.usefixtures("boundary")
def test_the_messages_of_a_snapshot_are_kept_until_it_is_deleted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(api)
    publish(api, "before", "waiting")
    acknowledge(api, received(api)[:1])
    snapshot(api)
    seek(api, time=moment())
    publish(api, "later")
    assert taken(api) == ["later"]
    sweep(monkeypatch)
    seek(api, snapshot=KEPT)
    assert taken(api) == ["waiting", "later"]
    api.delete("snapshots/before")
    monkeypatch.setattr(snapshots, "ABANDONED_MS", -1000)
    snapshots.sweep_rows()
    sweep(monkeypatch)
    assert not Message.objects.exists()
    assert not SnapshotMessage.objects.exists()


def test_a_snapshot_survives_its_subscription_and_its_topic(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(api)
    publish(api, "kept")
    snapshot(api)
    api.delete("subscriptions/worker")
    sweep(monkeypatch)
    subscribe(api)
    seek(api, snapshot=KEPT)
    assert taken(api) == ["kept"]
    api.delete("topics/orders")
    assert api.get("snapshots/before").body["topic"] == "_deleted-topic_"


def test_expired_snapshots_are_deleted(api: Api) -> None:
    subscribe(api)
    snapshot(api)
    Snapshot.objects.update(expire_at=utcnow() - datetime.timedelta(seconds=1))
    assert api.get("snapshots/before").status == 404
    assert api.get("snapshots").body == {}
    assert sweep_snapshots() == 1
    assert not Snapshot.objects.exists()


def test_the_name_and_the_place_of_an_expired_snapshot_are_free_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_SNAPSHOTS", 1)
    subscribe(api)
    snapshot(api)
    Snapshot.objects.update(expire_at=utcnow() - datetime.timedelta(seconds=1))
    assert snapshot(api, "another")["name"].endswith("/another")
    Snapshot.objects.filter(snapshot_id="another").update(expire_at=utcnow() - datetime.timedelta(seconds=1))
    assert snapshot(api)["name"] == KEPT
    assert api.get("snapshots/before").status == 200


def test_a_snapshot_lives_seven_days_less_the_age_of_the_oldest_unacknowledged_message(api: Api) -> None:
    subscribe(api)
    publish(api, "old")
    age(6 * DAY)
    created = snapshot(api)
    left = parse_timestamp(created["expireTime"], field="x") - utcnow()
    assert DAY - datetime.timedelta(minutes=1) < left <= DAY
    age(datetime.timedelta(hours=23, minutes=1))
    refused = api.put("snapshots/another", {"subscription": WORKER})
    assert refused.error["status"] == "FAILED_PRECONDITION"
    assert "would expire in less than an hour" in refused.error["message"]


def age(by: datetime.timedelta) -> None:
    """Make every message older."""
    for row in Message.objects.all():
        older = row.pk - (int(by.total_seconds() * 1000) << 22)
        Delivery.objects.filter(message_id=row.pk).update(message_id=older)
        Message.objects.filter(pk=row.pk).update(id=older)


@pytest.mark.parametrize("fields", [{"retainAckedMessages": True}, {}])
def test_a_seek_to_a_past_time_brings_back_the_retained_messages(
    api: Api, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(api, **fields)
    publish(api, "early")
    then = moment()
    publish(api, "a", "b")
    assert taken(api) == ["early", "a", "b"]
    sweep(monkeypatch)
    seek(api, time=then)
    assert taken(api) == (["a", "b"] if fields else [])


def test_seek_marks_older_messages_as_acknowledged(api: Api) -> None:
    subscribe(api)
    publish(api, "early")
    then = moment()
    publish(api, "late")
    seek(api, time=then)
    assert taken(api) == ["late"]


def test_seek_to_a_future_time_purges_and_later_publishes_are_delivered(api: Api) -> None:
    subscribe(api, retainAckedMessages=True)
    publish(api, "a", "b")
    assert len(received(api)) == 2, "the message is leased and not acknowledged"
    seek(api, time=format_timestamp(utcnow() + DAY))
    assert not Delivery.objects.exists()
    publish(api, "new")
    assert taken(api) == ["new"]


def test_a_seek_purges_the_messages_of_every_region(api: Api, settings: Any) -> None:
    settings.REGIONS = ["local", "far"]
    subscribe(api)

    def publish_far(text: str) -> None:
        body = {"messages": [{"data": base64.b64encode(text.encode()).decode()}]}
        assert api.post("topics/orders:publish", body, **{"X-PushHub-Region": "far"}).status == 200

    # Given messages of another region, of which Redis has some
    publish_far("a")
    publish_far("b")
    [first] = api.post("subscriptions/worker:pull", {"maxMessages": 1}).body["receivedMessages"]
    acknowledge(api, [first])
    # When they are purged
    seek(api, time=format_timestamp(utcnow() + DAY))
    # Then none of them comes, whatever is published there later
    publish_far("c")
    assert taken(api) == ["c"]


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
def test_a_seek_to_the_first_or_last_possible_time_works(api: Api, when: str) -> None:
    subscribe(api)
    publish(api, "a")
    seek(api, time=when)
    assert taken(api) == ([] if when.startswith("9") else ["a"])


def test_a_topics_retention_reaches_back_to_before_the_subscription(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = {"topic": {"messageRetentionDuration": "86400s"}, "updateMask": "messageRetentionDuration"}
    assert api.patch("topics/orders", patch).status == 200
    then = moment()
    publish(api, "early")
    sweep(monkeypatch)
    subscribe(api)
    assert api.get("subscriptions/worker").body["topicMessageRetentionDuration"] == "86400s"
    assert taken(api) == []
    seek(api, time=then)
    assert taken(api) == ["early"]


def test_a_subscriptions_own_retention_does_not_reach_back_to_before_it(api: Api) -> None:
    subscribe(api, "earlier", retainAckedMessages=True)
    then = moment()
    publish(api, "early")
    subscribe(api, retainAckedMessages=True)
    seek(api, time=then)
    assert taken(api) == []


def test_retained_messages_are_deleted_after_their_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    subscribe(api, retainAckedMessages=True, messageRetentionDuration="600s")
    publish(api, "old")
    taken(api)
    sweep(monkeypatch)
    assert Message.objects.count() == 1
    age(datetime.timedelta(seconds=601))
    sweep(monkeypatch)
    assert not Message.objects.exists()


def test_a_seek_applies_the_filter(api: Api) -> None:
    subscribe(api, filter="attributes:x", retainAckedMessages=True)
    then = moment()
    publish(api, "no")
    publish(api, "yes", attributes={"x": "1"})
    assert taken(api) == ["yes"]
    seek(api, time=then)
    assert taken(api) == ["yes"]


def test_a_seek_keeps_the_order_of_a_key(api: Api) -> None:
    subscribe(api, enableMessageOrdering=True, retainAckedMessages=True)
    then = moment()
    publish(api, "1", "2", "3", orderingKey="k")
    assert taken(api) == ["1", "2", "3"]
    seek(api, time=then)
    assert taken(api) == ["1", "2", "3"]


def test_a_pushed_subscription_is_pushed_again_after_a_seek(api: Api, redis_url: str) -> None:
    with Receiver() as receiver, Worker(redis_url):
        subscribe(api, pushConfig={"pushEndpoint": receiver.url}, retainAckedMessages=True)
        then = moment()
        publish(api, "a", "b")
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
        seek(api, time=then)
        receiver.wait(4)
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
    pushed = [base64.b64decode(request.json["message"]["data"]).decode() for request in receiver.requests]
    assert sorted(pushed) == ["a", "a", "b", "b"]


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("subscriptions/none:seek", {"time": "2026-01-01T00:00:00Z"}, "NOT_FOUND"),
        ("subscriptions/worker:seek", {}, "INVALID_ARGUMENT"),
        ("subscriptions/worker:seek", {"time": "yesterday"}, "INVALID_ARGUMENT"),
        ("subscriptions/worker:seek", {"snapshot": "projects/shop/snapshots/none"}, "NOT_FOUND"),
        ("subscriptions/worker:seek", {"snapshot": "nonsense"}, "INVALID_ARGUMENT"),
        ("subscriptions/worker:seek", {"snapshot": KEPT, "time": "2026-01-01T00:00:00Z"}, "INVALID_ARGUMENT"),
        ("subscriptions/stranger:seek", {"snapshot": KEPT}, "FAILED_PRECONDITION"),
        ("subscriptions/detached:seek", {"time": "2026-01-01T00:00:00Z"}, "FAILED_PRECONDITION"),
    ],
)
def test_bad_seeks_are_refused_and_change_nothing(api: Api, path: str, body: Any, code: str) -> None:
    subscribe(api)
    publish(api, "waiting")
    snapshot(api)
    api.create("topics/returns")
    api.create("subscriptions/stranger", {"topic": "projects/shop/topics/returns"})
    subscribe(api, "detached")
    api.post("subscriptions/detached:detach")
    before = list(Delivery.objects.filter(subscription__subscription_id="worker").values())
    assert api.post(path, body).error["status"] == code
    assert list(Delivery.objects.filter(subscription__subscription_id="worker").values()) == before


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("before", {}, "INVALID_ARGUMENT"),
        ("before", {"subscription": "projects/shop/subscriptions/none"}, "NOT_FOUND"),
        ("before", {"subscription": "projects/shop/subscriptions/detached"}, "FAILED_PRECONDITION"),
        ("x", {"subscription": WORKER}, "INVALID_ARGUMENT"),
        ("before", {"subscription": WORKER, "labels": {"A": "b"}}, "INVALID_ARGUMENT"),
    ],
)
def test_bad_snapshots_are_refused(api: Api, name: str, body: Any, code: str) -> None:
    subscribe(api)
    subscribe(api, "detached")
    api.post("subscriptions/detached:detach")
    assert api.put(f"snapshots/{name}", body).error["status"] == code
    assert not Snapshot.objects.exists()


def test_only_labels_of_a_snapshot_can_be_changed(api: Api) -> None:
    subscribe(api)
    snapshot(api)
    patch = {"snapshot": {"expireTime": "2030-01-01T00:00:00Z"}, "updateMask": "expireTime"}
    assert api.patch("snapshots/before", patch).error["status"] == "INVALID_ARGUMENT"


@pytest.mark.usefixtures("boundary")
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["publish", "take one", "take all", "snapshot", "seek"]), max_size=14))
def test_any_history_comes_back_to_what_the_snapshot_had(api: Api, steps: list[str]) -> None:
    """Against a model: the set of what is owed, copied by a snapshot and restored by a seek."""
    name = f"worker-{time.monotonic_ns()}"
    kept = f"kept-{time.monotonic_ns()}"
    subscribe(api, name)
    owed: list[str] = []
    saved: list[str] | None = None
    for number, step in enumerate(steps):
        if step == "publish":
            publish(api, f"{name} {number}")
            owed.append(f"{name} {number}")
            if saved is not None:
                saved.append(f"{name} {number}")
        elif step.startswith("take"):
            messages = received(api, name)
            count = 1 if step == "take one" else len(messages)
            acknowledge(api, messages[:count], name)
            for text in texts(messages[:count]):
                owed.remove(text)
            rest = [message["ackId"] for message in messages[count:]]
            if rest:
                api.post(f"subscriptions/{name}:modifyAckDeadline", {"ackIds": rest, "ackDeadlineSeconds": 0})
        elif step == "snapshot" and saved is None:
            body = {"subscription": f"projects/shop/subscriptions/{name}"}
            api.create(f"snapshots/{kept}", body)
            saved = list(owed)
        elif step == "seek" and saved is not None:
            seek(api, name, snapshot=f"projects/shop/snapshots/{kept}")
            owed = list(saved)
    assert sorted(texts(received(api, name))) == sorted(owed)
    api.delete(f"subscriptions/{name}")


def test_a_subscription_that_nobody_uses_expires(api: Api) -> None:
    subscribe(api, "brief", expirationPolicy={"ttl": "86400s"})
    subscribe(api, "usual")
    subscribe(api, "lasting", expirationPolicy={})
    assert activity.delete_expired_subscriptions() == 0
    Subscription.objects.update(active_at=utcnow() - DAY * 1.1, updated_at=utcnow() - DAY * 1.1)
    assert activity.delete_expired_subscriptions() == 1
    assert api.get("subscriptions/brief").status == 404
    Subscription.objects.update(active_at=utcnow() - DAY * 40, updated_at=utcnow() - DAY * 40)
    assert activity.delete_expired_subscriptions() == 1
    assert [row.subscription_id for row in Subscription.objects.all()] == ["lasting"]


def test_a_policy_longer_than_the_calendar_stops_neither_the_sweep_nor_the_console(api: Api) -> None:
    # Given a policy of 10,000 years, which is the longest duration, and another one that is over
    subscribe(api, "endless", expirationPolicy={"ttl": "315576000000s"})
    subscribe(api, "brief", expirationPolicy={"ttl": "86400s"})
    Subscription.objects.update(active_at=utcnow() - DAY * 2, updated_at=utcnow() - DAY * 2)

    # When the sweep comes, then the other one is deleted, and the first isn't about to be
    assert activity.delete_expired_subscriptions() == 1
    status = subscription_status(Subscription.objects.get(subscription_id="endless"))
    assert Condition.EXPIRING not in [notice.condition for notice in status.notices]


def test_a_subscription_that_is_used_while_a_sweep_is_frozen_stays(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given two subscriptions that have expired
    for name in ("first", "second"):
        subscribe(api, name, expirationPolicy={"ttl": "86400s"})
    Subscription.objects.update(active_at=utcnow() - DAY * 2, updated_at=utcnow() - DAY * 2)
    delete = activity.delete_subscription

    # When a sweep is frozen until the second one is used again
    def delete_late(*, name: str) -> None:
        delete(name=name)
        Subscription.objects.update(active_at=utcnow())

    monkeypatch.setattr(activity, "delete_subscription", delete_late)
    assert activity.delete_expired_subscriptions() == 1
    # Then it stays
    assert [row.subscription_id for row in Subscription.objects.all()] == ["second"]


@pytest.mark.parametrize("use", ["pull", "change"])
def test_pulls_and_changes_keep_a_subscription(api: Api, use: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "_noted", {})
    subscribe(api, expirationPolicy={"ttl": "86400s"})
    Subscription.objects.update(active_at=utcnow() - DAY * 2, updated_at=utcnow() - DAY * 2)
    if use == "pull":
        assert taken(api) == []
    else:
        api.patch("subscriptions/worker", {"subscription": {"labels": {"a": "b"}}, "updateMask": "labels"})
    assert activity.delete_expired_subscriptions() == 0


def test_a_pull_while_the_clock_is_behind_makes_no_subscription_seem_unused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a clock of its own begins in the past, until it has heard of the time."""
    subscribe(api)
    Subscription.objects.update(updated_at=utcnow() - DAY * 60)
    with monkeypatch.context() as patch:
        patch.setattr(activity, "_noted", {})
        patch.setattr(activity, "utcnow", lambda: utcnow() - DAY * 60)
        assert taken(api) == []
    assert activity.delete_expired_subscriptions() == 0


def test_a_use_is_noted_again_after_an_hour_of_which_the_machine_slept_most(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "_noted", {})
    subscribe(api)
    assert taken(api) == []
    Subscription.objects.update(active_at=utcnow() - DAY * 2)
    awake = time.time() + activity.NOTED_SECONDS
    monkeypatch.setattr(activity.time, "time", lambda: awake)
    assert taken(api) == []
    assert Subscription.objects.get().active_at > utcnow() - DAY


@pytest.mark.parametrize("stock", [False, True], ids=["push worker", "stock worker"])
def test_an_acknowledged_push_keeps_a_subscription(api: Api, redis_url: str, stock: bool) -> None:
    with Receiver() as receiver, Worker(redis_url, stock=stock):
        subscribe(api, pushConfig={"pushEndpoint": receiver.url})
        Subscription.objects.update(active_at=utcnow() - DAY * 2)
        publish(api, "a")
        wait_for(lambda: Subscription.objects.get().active_at > utcnow() - DAY, what="the note of the activity")
