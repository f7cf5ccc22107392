"""From publish to ack with a real worker process: nothing is lost, whatever dies or is unavailable."""

from __future__ import annotations

import base64
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from deliveries.backlog import lanes, reconcile
from deliveries.backlog.codes import Mode
from deliveries.backlog.connection import client_of
from deliveries.backlog.default import default_backlog
from deliveries.backlog.lanes import configure_lane, lane_agrees
from deliveries.backlog.lanestate import LaneState
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.push.rejected import rejected
from deliveries.rules.payload import NewMessage
from deliveries.rules.taskmessage import queue_name
from pushhub.common.outages import Cause
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic, push_settings_of
from subscriptions.services.subscriptions import pause_subscription, resume_subscription
from tests.lanes import configure, lane_change, lane_state, low_queue, mark_alive
from tests.ports import wait_for
from tests.receiver import Answer, Receiver, Request
from tests.redisserver import RedisServer
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

TOPIC = "projects/shop/topics/orders"
PUSH = "projects/shop/subscriptions/push"


@pytest.fixture
def own_redis(tmp_path: Path, settings: Any, redis_server: str) -> Iterator[RedisServer]:
    """Return a Redis server that the test may stop and start, beside the one that goes on."""
    with RedisServer(tmp_path) as server:
        settings.REDIS_URL = server.url
        yield server


def subscribe(api: Api, receiver: Receiver, name: str = "push", **fields: Any) -> None:
    api.put("topics/orders")
    body = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}} | fields
    answer = api.put(f"subscriptions/{name}", body)
    assert answer.status == 200, answer.body


def publish(count: int, *, start: int = 0, data: bytes = b"") -> list[str]:
    messages = [NewMessage(data or f"message {i}".encode(), {"n": str(i)}) for i in range(start, start + count)]
    return publish_message(topic=get_topic(name=TOPIC), messages=messages)


def all_settled() -> bool:
    return not Delivery.objects.exists()


def settled() -> None:
    wait_for(all_settled, what="the last ack")


def ids_received(receiver: Receiver) -> Counter[str]:
    return Counter(request.json["message"]["messageId"] for request in receiver.requests)


def test_a_message_published_over_rest_arrives_in_the_documented_form_and_is_acked(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    subscribe(api, receiver)
    data = base64.b64encode(b"Hello Cloud Pub/Sub! Here is my message!").decode()
    with Worker(redis_url):
        answer = api.post("topics/orders:publish", {"messages": [{"data": data, "attributes": {"key": "value"}}]})
        settled()
    [message_id] = answer.body["messageIds"]
    [request] = receiver.requests
    message = request.json["message"]
    assert list(request.json) == ["message", "subscription"]
    assert list(message) == ["attributes", "data", "messageId", "message_id", "publishTime", "publish_time"]
    assert message["data"] == data
    assert message["attributes"] == {"key": "value"}
    assert message["messageId"] == message["message_id"] == message_id
    assert request.json["subscription"] == "projects/shop/subscriptions/push"
    assert request.method == "POST"
    assert request.headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_delays_the_next_attempt(api: Api, receiver: Receiver, redis_url: str, status: int) -> None:
    receiver.default = Answer(status, headers={"Retry-After": "40"})
    subscribe(api, receiver)
    publish(1)
    client, key = default_backlog().client, f"{Lane(Subscription.objects.get().pk, 'local').root}:z"
    with Worker(redis_url):
        wait_for(lambda: client.zcard(key), what="the nack")
        [(_, due_ms)] = client.zrange(key, 0, -1, withscores=True)
        assert due_ms / 1000 - client.time()[0] > 20
    assert len(receiver.requests) == 1


def test_only_the_five_success_statuses_acknowledge(api: Api, receiver: Receiver, redis_url: str) -> None:
    """102, 200, 201, 202 and 204 acknowledge; others are nacks (docs/spec-delivery.md#push-acknowledgement)."""
    acks, nacks = [102, 200, 201, 202, 204], [203, 206, 301, 400, 404, 429, 500, 503]
    seen: Counter[int] = Counter()

    def script(request: Request) -> int:
        status = int(request.json["subscription"].rpartition("-")[2])
        seen[status] += 1
        return status if seen[status] == 1 else 204

    receiver.default = script
    for status in acks + nacks:
        subscribe(api, receiver, f"push-{status}")
    publish(1)
    with Worker(redis_url):
        settled()
    assert seen == dict.fromkeys(acks, 1) | dict.fromkeys(nacks, 2)


def test_the_delivery_attempt_is_sent_only_with_a_dead_letter_policy(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    receiver.script([500])
    api.put("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    subscribe(api, receiver, deadLetterPolicy=policy)
    publish(1)
    with Worker(redis_url):
        settled()
    assert [request.json["deliveryAttempt"] for request in receiver.requests] == [1, 2]


def test_a_nack_is_recorded_with_its_reason(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    subscribe(api, receiver)
    publish(1)
    with Worker(redis_url):
        wait_for(lambda: Delivery.objects.get().attempts >= 2, what="two nacks")
    delivery = Delivery.objects.get()
    assert delivery.last_result == "503"
    assert delivery.last_attempt_at is not None


def test_every_subscription_gets_its_own_copy(api: Api, receiver: Receiver, redis_url: str) -> None:
    subscribe(api, receiver, "one-push")
    subscribe(api, receiver, "two-push")
    publish(5)
    with Worker(redis_url):
        settled()
    assert Counter(request.json["subscription"].rsplit("/")[-1] for request in receiver.requests) == {
        "one-push": 5,
        "two-push": 5,
    }


def test_a_backlog_beyond_what_redis_holds_arrives_whole(api: Api, receiver: Receiver, redis_url: str) -> None:
    subscribe(api, receiver)
    default_backlog().limit = 50
    try:
        published = [message_id for start in range(0, 600, 200) for message_id in publish(200, start=start)]
        with Worker(redis_url, PUSHHUB_BACKLOG_LIMIT="50"):
            settled()
    finally:
        default_backlog().limit = 4000
    assert ids_received(receiver) == Counter(published)


def test_a_large_payload_does_not_pass_through_redis(api: Api, receiver: Receiver, redis_url: str) -> None:
    subscribe(api, receiver)
    data = os.urandom(300_000)
    publish(1, data=data)
    [waiting] = client_of(redis_url).lrange(low_queue("local"), 0, -1)
    assert len(waiting) < 2_000
    receiver.script([500])
    with Worker(redis_url):
        settled()
    assert [base64.b64decode(request.json["message"]["data"]) for request in receiver.requests] == [data, data]


def test_only_a_small_payload_waits_in_redis_for_its_retry(api: Api, receiver: Receiver, redis_url: str) -> None:
    # Given a small and a larger message that are nacked
    receiver.default = 503
    subscribe(api, receiver, retryPolicy={"minimumBackoff": "600s", "maximumBackoff": "600s"})
    small, larger = os.urandom(100), os.urandom(10_000)
    publish(1, data=small)
    publish(1, data=larger)
    client, lane = client_of(redis_url), Lane(Subscription.objects.get().pk, "local")
    with Worker(redis_url):
        wait_for(lambda: client.zcard(f"{lane.root}:z") == 2, what="two nacks")
        messages = client.hvals(f"{lane.root}:m")
        # When they are retried
        receiver.default = 204
        configure_lane(lane, push_settings_of(lane.subscription_id), action="anew")
        settled()
    # Then both arrive whole, although Redis had only the small one
    assert max(map(len, messages)) < 2_000
    received = [base64.b64decode(request.json["message"]["data"]) for request in receiver.requests[2:]]
    assert sorted(received, key=len) == [small, larger]


def test_a_worker_killed_in_mid_flight_loses_nothing(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = Answer(204, delay_seconds=0.2)
    subscribe(api, receiver)
    published = publish(60)
    with Worker(redis_url, name="first") as first:
        wait_for(lambda: receiver.outstanding >= 3, what="outstanding pushes")
        first.kill()
    receiver.default = 204
    with Worker(redis_url, name="second"):
        settled()
    assert set(ids_received(receiver)) == set(published)


def test_a_worker_that_stops_warmly_hands_back_what_it_holds(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = Answer(204, delay_seconds=30)
    subscribe(api, receiver, ackDeadlineSeconds=60)
    published = publish(3)
    with Worker(redis_url, PUSHHUB_DRAIN_SECONDS="1") as worker:
        wait_for(lambda: receiver.outstanding == 3, what="outstanding pushes")
        assert worker.stop() == 0
    assert not client_of(redis_url).keys("ph:work:*")
    receiver.default = 204
    with Worker(redis_url):
        settled()
    assert ids_received(receiver) == Counter(published * 2)


@pytest.mark.parametrize("more", [0, 10], ids=["quiet", "publishing"])
def test_a_wiped_redis_is_rebuilt_and_every_message_arrives(
    api: Api, receiver: Receiver, redis_url: str, more: int
) -> None:
    """A publisher repairs its lane in a wiped Redis; without a publisher the worker's heartbeat does."""
    receiver.default = 503
    subscribe(api, receiver)
    published = publish(40)
    with Worker(redis_url):
        wait_for(lambda: len(receiver.requests) >= 1, what="a first push")
        client_of(redis_url).flushall()
        receiver.default = 204
        if more:
            published += publish(more, start=40)
        settled()
    assert set(ids_received(receiver)) == set(published)


def test_messages_published_while_redis_is_away_are_found_by_the_audit(
    api: Api, receiver: Receiver, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(api, receiver)

    def away(*_: Any, **__: Any) -> None:
        raise redis.ConnectionError("away")

    with monkeypatch.context() as patch:
        patch.setattr(default_backlog(), "offer", away)
        publish(5)
    monkeypatch.setattr(reconcile, "GRACE_MS", -1000)
    mark_alive(default_backlog())  # otherwise the worker rebuilds Redis, which would find the messages as well
    with Worker(redis_url):
        assert reconcile.audit() == 1
        settled()
    assert len(receiver.requests) == 5


def test_a_token_that_nobody_holds_is_taken_back(
    api: Api, receiver: Receiver, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(api, receiver)
    publish(4)
    with monkeypatch.context() as patch:
        patch.setattr(reconcile, "LOST_MS", 0)
        assert [reconcile.audit_tokens() for _ in range(3)] == [0, 0, 0]  # the queue holds them
    client_of(redis_url).delete(low_queue("local"))
    # A first audit suspects them. Others, in any process, wait until they have been lost for a while.
    assert [reconcile.audit_tokens() for _ in range(3)] == [0, 0, 0]
    monkeypatch.setattr(reconcile, "LOST_MS", 0)
    assert reconcile.audit_tokens() == 3
    with Worker(redis_url):
        settled()
    assert len(receiver.requests) == 4


def test_an_outage_of_redis_needs_no_intervention(receiver: Receiver, own_redis: RedisServer) -> None:
    subscribe(Api(), receiver)
    with Worker(own_redis.url) as worker:
        publish(2)
        settled()
        own_redis.stop()
        publish(2, start=2)
        wait_for(lambda: Cause.REDIS_AWAY in worker.log, what="the worker noticing")
        own_redis.start()
        settled()
        publish(1, start=4)
        settled()
    assert len(ids_received(receiver)) == 5


def test_switching_to_pull_pauses_and_switching_back_resumes_without_a_loss(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    subscribe(api, receiver)
    with Worker(redis_url):
        api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {}})
        published = publish(10)
        subscription_id = Subscription.objects.get().pk
        assert lane_state(default_backlog(), Lane(subscription_id, "local")).mode == Mode.PULL
        assert receiver.requests == []
        api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url}})
        settled()
    assert ids_received(receiver) == Counter(published)


def test_the_backlog_of_a_pull_subscription_is_pushed_as_soon_as_it_has_an_endpoint(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    """No audit runs here: the change itself must find the messages that were not offered."""
    api.put("topics/orders", {})
    api.put("subscriptions/push", {"topic": TOPIC})
    published = publish(10)
    with Worker(redis_url):
        api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url}})
        settled()
    assert ids_received(receiver) == Counter(published)


def test_a_change_during_a_rebuild_is_the_last_word(
    api: Api, receiver: Receiver, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a rebuild that has read a subscription, when that gets an endpoint before Redis is told, then it pushes."""
    api.put("topics/orders", {})
    api.put("subscriptions/push", {"topic": TOPIC})
    publish(1)
    configuration = lanes.lane_configuration

    def configure_late(lane: Lane, settings: Any, **how: Any) -> Any:
        if not settings.is_push:
            api.post("subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": receiver.url}})
        return configuration(lane, settings, **how)

    monkeypatch.setattr(lanes, "lane_configuration", configure_late)

    assert reconcile.rebuild() == 1

    settings = push_settings_of(Subscription.objects.get().pk)
    assert settings is not None and settings.is_push
    assert lane_agrees(default_backlog().states([Lane(settings.id, "local")])[0], settings)


def test_a_new_endpoint_takes_effect_on_messages_that_wait(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    subscribe(api, receiver)
    publish(3)
    with Receiver() as other, Worker(redis_url):
        wait_for(lambda: len(receiver.requests) >= 3, what="nacks at the old endpoint")
        api.patch(
            "subscriptions/push",
            {"subscription": {"pushConfig": {"pushEndpoint": other.url}}, "updateMask": "pushConfig"},
        )
        settled()
        assert len(other.requests) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda api, url: api.post(
            "subscriptions/push:modifyPushConfig", {"pushConfig": {"pushEndpoint": url, "noWrapper": {}}}
        ),
        lambda api, url: (pause_subscription(name=PUSH), resume_subscription(name=PUSH)),
    ],
    ids=["other requests", "pause and resume"],
)
def test_whoever_mends_an_endpoint_need_not_wait_for_the_backoff(
    api: Api, receiver: Receiver, redis_url: str, change: Callable[[Api, str], object]
) -> None:
    """Given a pause of an hour and retries that wait for an hour, when the push config changes, then they go out."""
    receiver.default = 503
    subscribe(api, receiver, retryPolicy={"minimumBackoff": "600s", "maximumBackoff": "600s"})
    lane = Lane(Subscription.objects.get().pk, "local")
    retries = f"{lane.root}:z"
    client = default_backlog().client
    publish(3)
    with Worker(redis_url):
        wait_for(lambda: client.zcard(retries) == 3, what="three nacks")
        in_an_hour_ms = time.time() * 1000 + 3_600_000
        client.zadd(retries, dict.fromkeys(client.zrange(retries, 0, -1), in_an_hour_ms))
        lane_change(default_backlog(), lane, resume_ms=in_an_hour_ms, backoff_level=12)
        receiver.default = 204
        change(api, receiver.url)
        settled()
    assert len(receiver.requests) == 6


def test_a_deleted_subscription_gets_no_more_pushes(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    subscribe(api, receiver)
    publish(5)
    with Worker(redis_url):
        wait_for(lambda: len(receiver.requests) >= 1, what="a first push")
        assert api.delete("subscriptions/push").status == 200
        reconcile.purge_gone()
        wait_for(lambda: not client_of(redis_url).keys("ph:work:*"), what="the worker letting go")
    assert all_settled()
    assert not client_of(redis_url).keys("ph:*:local:*")


def test_a_task_that_cannot_be_decoded_is_kept_for_people_and_stops_nothing(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    subscribe(api, receiver)
    client_of(redis_url).rpush(queue_name("local"), b"no JSON")
    publish(2)
    with Worker(redis_url):
        settled()
        wait_for(lambda: len(rejected()) == 1, what="the rejected message")
    assert rejected()[0]["message"] == "b'no JSON'"


def test_an_unreachable_endpoint_never_loses_a_message(api: Api, receiver: Receiver, redis_url: str) -> None:
    with Receiver() as gone:
        subscribe(api, gone)
    publish(2)
    with Worker(redis_url):
        wait_for(lambda: Delivery.objects.filter(last_result="connect_failed").count() == 2, what="two nacks")
        api.patch(
            "subscriptions/push",
            {"subscription": {"pushConfig": {"pushEndpoint": receiver.url}}, "updateMask": "pushConfig"},
        )
        settled()
    assert len(receiver.requests) == 2


def test_a_connection_is_used_for_many_pushes(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = Answer(200, body=b"thank you")
    subscribe(api, receiver)
    publish(200)
    with Worker(redis_url):
        settled()
    assert len({request.connection for request in receiver.requests}) < 100


def test_a_slow_endpoint_is_nacked_at_its_deadline(api: Api, receiver: Receiver, redis_url: str) -> None:
    slow = {0: True}

    def script(_: Request) -> int | Answer:
        return Answer(204, delay_seconds=14) if slow.pop(0, False) else 204

    receiver.default = script
    subscribe(api, receiver, ackDeadlineSeconds=10)
    publish(1)
    with Worker(redis_url):
        wait_for(
            lambda: Delivery.objects.filter(last_result="deadline_exceeded").exists() or all_settled(), what="a nack"
        )
        settled()
    assert len(receiver.requests) == 2


def test_inspect_shows_what_is_outstanding(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = Answer(204, delay_seconds=300)  # until the receiver stops
    subscribe(api, receiver, ackDeadlineSeconds=600)
    [message_id] = publish(1)
    with Worker(redis_url, PUSHHUB_DRAIN_SECONDS="0") as worker:
        wait_for(lambda: receiver.outstanding == 1, what="the push")
        assert message_id in worker.celery("inspect", "active")
        assert '"outstanding": 1' in worker.celery("inspect", "stats")


def test_a_revoked_delivery_is_dropped_at_its_next_attempt(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 503
    subscribe(api, receiver)
    [message_id] = publish(1)
    with Worker(redis_url) as worker:
        wait_for(lambda: receiver.requests, what="a first attempt")
        lane = Lane(Delivery.objects.get().subscription_id, "local")
        generation = lane_state(default_backlog(), lane).generation
        worker.celery("control", "revoke", f"{message_id}.{lane.subscription_id}.local.{generation}")
        settled()


def test_a_worker_that_was_suspended_and_declared_dead_does_no_harm(
    api: Api, receiver: Receiver, redis_url: str
) -> None:
    receiver.default = Answer(204, delay_seconds=1)
    subscribe(api, receiver)
    published = publish(6)
    with Worker(redis_url, name="first") as first:
        wait_for(lambda: receiver.outstanding == 3, what="outstanding pushes")
        first.suspend()
        receiver.default = 204
        with Worker(redis_url, name="second"):
            settled()
            first.resume()
            published += publish(20, start=6)
            settled()
    assert set(ids_received(receiver)) == set(published)
    subscription_id = Subscription.objects.get().pk
    wait_for(
        lambda: lane_state(default_backlog(), Lane(subscription_id, "local")).outstanding == 0, what="every token back"
    )


def test_an_endpoint_that_hangs_does_not_slow_the_others(api: Api, receiver: Receiver, redis_url: str) -> None:
    receiver.default = 204
    with Receiver(Answer(204, delay_seconds=60)) as hanging:
        subscribe(api, hanging, "hanging", ackDeadlineSeconds=60)
        subscribe(api, receiver, "healthy")
        published = publish(300)
        healthy = Subscription.objects.get(subscription_id="healthy").pk
        with Worker(redis_url, PUSHHUB_DRAIN_SECONDS="0"):
            wait_for(
                lambda: not Delivery.objects.filter(subscription_id=healthy).exists(), what="the healthy one's acks"
            )
            assert 1 <= len(hanging.requests) <= 3
    assert ids_received(receiver) == Counter(published)


SLEEPS_FOR_HOURS = "from deliveries.push import transport; transport.MAX_SLEEP_SECONDS = 7200"


def test_a_worker_that_sleeps_is_woken_for_a_retry(api: Api, receiver: Receiver, redis_url: str) -> None:
    """Otherwise the retry would wait for the end of the sleep, seconds after a countdown that begins at 100 ms."""
    receiver.script([500, 500])
    subscribe(api, receiver)
    with Worker(redis_url, first=SLEEPS_FOR_HOURS):
        publish(1)
        settled()
    assert len(receiver.requests) == 3


def test_a_rate_limit_holds_though_nothing_else_wakes_the_worker(api: Api, receiver: Receiver, redis_url: str) -> None:
    attributes = {"x-pushhub-rate": "50", "x-pushhub-burst": "1"}
    subscribe(api, receiver, pushConfig={"pushEndpoint": receiver.url, "attributes": attributes})
    with Worker(redis_url, first=SLEEPS_FOR_HOURS):
        publish(100)
        settled()
    assert len(receiver.requests) == 100


LIMITS = {"x-pushhub-rate": "10", "x-pushhub-burst": "4", "x-pushhub-max-outstanding": "2"}
IN_REDIS = {"rate": 10, "burst": 4, "cap": 2}


def state_of(name: str) -> LaneState:
    return lane_state(default_backlog(), Lane(Subscription.objects.get(subscription_id=name).pk, "local"))


def limits_of(name: str) -> dict[str, float]:
    flow = state_of(name).flow
    return {"rate": flow.rate, "burst": flow.burst, "cap": flow.cap}


def test_an_idle_subscription_keeps_its_own_limits_through_a_wipe(api: Api, receiver: Receiver, redis_url: str) -> None:
    # Given a subscription with limits and nothing waiting, whose lane Redis has lost
    subscribe(api, receiver, pushConfig={"pushEndpoint": receiver.url, "attributes": LIMITS})
    client_of(redis_url).flushall()
    reconcile.rebuild()
    # When somebody publishes
    publish(30)
    # Then its limits are back before any audit
    assert limits_of("push") == IN_REDIS
    receiver.default = Answer(204, delay_seconds=0.05)
    most = 0
    with Worker(redis_url):
        while not all_settled():
            most = max(most, receiver.outstanding)
    assert most <= 2


@pytest.mark.parametrize("waiting", [0, 1], ids=["idle", "waiting"])
def test_the_audit_repairs_settings_whose_notice_got_lost(
    api: Api, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, waiting: int
) -> None:
    # Given new limits of which Redis was not told, and one more lane of an ordered subscription
    subscribe(api, receiver)
    subscribe(api, receiver, "ordered", enableMessageOrdering=True)
    if waiting:
        publish(waiting)
    rows = Subscription.objects.filter(subscription_id="push")
    rows.update(push_attributes=LIMITS)
    ordered = Lane(Subscription.objects.get(subscription_id="ordered").pk, "local")
    configure(default_backlog(), ordered, mode=Mode.PUSH, action="known", ordered=False)
    # When the audit runs
    assert reconcile.audit() >= 2
    # Then Redis has all settings of the subscription
    assert limits_of("push") == IN_REDIS
    assert state_of("ordered").ordered
    assert reconcile.audit() == 0, "settings that agree are not written"
