"""A subscription's page says why messages wait, and its buttons do what they say."""

from __future__ import annotations

import re
import time
from datetime import datetime
from typing import Any

import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from deliveries.backlog.codes import Mode
from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.inspection import status as statuses
from deliveries.models import Delivery
from pushhub.common.clock import time_text, utcnow
from subscriptions.iam import grants
from subscriptions.models import Snapshot, Subscription
from tests.lanes import lane_state, note_maintenance
from tests.metricrows import add_events
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api, staff_client
from tests.workers import Worker

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "projects/shop/topics/orders"


@pytest.fixture
def api(redis_url: str) -> Api:
    note_maintenance()
    api = Api()
    api.create("topics/orders")
    return api


def push_subscription(api: Api, endpoint: str, **fields: object) -> Subscription:
    api.create("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": endpoint}, **fields})
    return Subscription.objects.get()


def publish(api: Api, count: int) -> None:
    for _ in range(count):
        assert api.post("topics/orders:publish", {"messages": [{"data": "aGVsbG8="}]}).status == 200


def live(client: Client, row: Subscription) -> dict[str, Any]:
    shown: dict[str, Any] = client.get(f"/admin/deliveries/delivery/state/{row.pk}/live/").json()
    return shown


def act(client: Client, row: Subscription, action: str, **fields: str) -> str:
    """Press a button, confirm its question if there is one, and return the messages of the next page."""
    answer = client.post(f"/admin/deliveries/delivery/act/{row.pk}/{action}/", fields, follow=True)
    if "question" in (answer.context or {}):
        return act(client, row, action, **fields, confirmed="yes")
    return " ".join(str(message) for message in answer.context["messages"])


def test_a_failing_endpoint_is_shown_with_its_status_and_the_next_attempt(
    api: Api, client: Client, redis_url: str, receiver: Receiver
) -> None:
    receiver.default = 503
    row = push_subscription(api, receiver.url)
    with Worker(redis_url):
        publish(api, 8)
        wait_for(lambda: "503; next attempt in" in live(client, row)["sentence"])
        shown = live(client, row)
    assert shown["level"] in ("bad", "warn")
    assert shown["figures"]["undelivered"] == "8"
    assert shown["figures"]["acked"] == "0.0 %"


def test_without_a_worker_the_page_says_so(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    publish(api, 2)
    assert live(client, row)["sentence"] == "Redis knows of no push worker of region local. Messages that wait: 2."


def test_the_page_needs_as_many_queries_with_many_messages_as_with_few(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    counts = []
    for count in (1, 30):
        publish(api, count)
        live(client, row)
        with CaptureQueriesContext(connection) as queries:
            live(client, row)
        # The probe whether the database can be written is made once a second, so it may fall into either.
        counts.append(sum(query["sql"].startswith("SELECT") for query in queries))
    assert counts[0] == counts[1] > 0


def test_a_pause_keeps_the_push_configuration_and_a_resume_brings_it_back(
    api: Api, client: Client, redis_url: str, receiver: Receiver
) -> None:
    row = push_subscription(api, receiver.url)
    assert act(client, row, "pause").startswith("Paused.")
    with Worker(redis_url):
        publish(api, 3)
        sentence = live(client, row)["sentence"]
        assert sentence.startswith("Paused by user:root@example.com since 20")
        assert sentence.endswith(" UTC. Messages that wait until it is resumed: 3.")
        paused = api.post("subscriptions/push:diagnose", {}).body["paused"]
        assert paused["by"] == "user:root@example.com"
        assert time_text(datetime.fromisoformat(paused["since"])) in sentence
        assert api.get("subscriptions/push").body["pushConfig"]["pushEndpoint"] == receiver.url
        assert lane_state(default_backlog(), Lane(row.pk, "local")).mode == Mode.IDLE
        assert receiver.requests == []
        assert act(client, row, "resume").startswith("Resumed")
        wait_for(lambda: not Delivery.objects.exists())
    assert len(receiver.requests) == 3


def test_the_result_of_a_test_message_is_shown_and_no_delivery_is_stored(
    api: Api, client: Client, receiver: Receiver
) -> None:
    row = push_subscription(api, receiver.url)
    assert act(client, row, "test").startswith("The endpoint acknowledged the test message with 20")
    receiver.default = 500
    assert act(client, row, "test").startswith("The test message failed with 500")
    assert len(receiver.requests) == 2
    assert not Delivery.objects.exists()


def test_destructive_actions_count_what_they_drop_and_ask_first(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    publish(api, 2)
    answer = client.post(f"/admin/deliveries/delivery/act/{row.pk}/delete/")
    assert "Deleting drops all undelivered messages (2)" in answer.content.decode()
    assert Subscription.objects.exists()
    assert act(client, row, "seek", time="2100-01-01T00:00:00").startswith("The backlog is now that of")
    assert not Delivery.objects.exists()
    assert act(client, row, "snapshot", snapshot_id="before") == (
        "Created the snapshot projects/shop/snapshots/before."
    )
    assert Snapshot.objects.get().snapshot_id == "before"
    assert act(client, row, "snapshot", snapshot_id="x").startswith("Invalid")
    assert act(client, row, "detach") == "Detached."
    assert live(client, row)["sentence"].startswith("Detached from its topic")
    assert act(client, row, "delete") == "Deleted projects/shop/subscriptions/push."
    assert not Subscription.objects.exists()


def test_a_seek_to_a_time_and_to_a_snapshot_is_refused(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    publish(api, 1)
    act(client, row, "snapshot", snapshot_id="before")
    both = {"time": "2100-01-01T00:00:00", "snapshot": "projects/shop/snapshots/before"}
    assert not act(client, row, "seek", **both).startswith("The backlog is now that of")
    assert Delivery.objects.count() == 1


def test_no_snapshot_is_offered_once_the_topic_is_deleted(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    address = f"/admin/deliveries/delivery/state/{row.pk}/"
    assert client.get(address).context["snapshot_action"]
    api.delete("topics/orders")
    page = client.get(address)
    assert (page.context["snapshot_action"], page.context["seek_action"]) == (False, True)


def test_a_reader_is_offered_those_snapshots_to_which_it_may_seek(api: Api, client: Client) -> None:
    # Given snapshots of a topic, and somebody who may consume one subscription of it
    row = push_subscription(api, "http://127.0.0.1:40009/")
    for name in ("before", "after"):
        api.create(f"snapshots/{name}", {"subscription": "projects/shop/subscriptions/push"})
    address = f"/admin/deliveries/delivery/state/{row.pk}/"
    assert len(client.get(address).context["snapshots"]) == 2
    ada = staff_client("ada")
    grants.grant_role(row, role="roles/pubsub.editor", member="user:ada@example.com")
    # Then it sees the names of those alone that it may use
    assert ada.get(address).context["snapshots"] == []
    role = {"role": "roles/pubsub.subscriber", "member": "user:ada@example.com"}
    grants.grant_role(Snapshot.objects.get(snapshot_id="before"), **role)
    assert ada.get(address).context["snapshots"] == ["projects/shop/snapshots/before"]


def test_try_now_ends_a_pause(api: Api, client: Client, redis_url: str, receiver: Receiver) -> None:
    receiver.default = 503
    row = push_subscription(api, receiver.url)
    with Worker(redis_url):
        publish(api, 8)
        wait_for(lambda: "next attempt in" in live(client, row)["sentence"])
        receiver.default = 204
        assert act(client, row, "try-now").startswith("The push backoff and the countdowns of retries are over")
        wait_for(lambda: not Delivery.objects.exists())
    assert live(client, row)["sentence"].startswith("Nothing waits.")


def test_dead_lettered_messages_are_not_called_acknowledged(
    api: Api, client: Client, redis_url: str, receiver: Receiver
) -> None:
    receiver.default = 503
    api.create("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    row = push_subscription(api, receiver.url, deadLetterPolicy=policy)
    with Worker(redis_url):
        publish(api, 2)
        wait_for(lambda: not Delivery.objects.filter(subscription=row).exists())
    shown = live(client, row)
    assert shown["sentence"].endswith("Dead letters that nobody has dealt with: 2.")
    assert "Look at the dead letters, and at the retention." in shown["parts"]["findings"]
    [address] = re.findall(r'<a href="(.+?)">Dead letters</a>', shown["parts"]["findings"])
    assert len(client.get(address).context["letters"]) == 2
    assert shown["level"] == "warn"


def test_what_is_counted_of_the_last_day_is_shown(api: Api, client: Client) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    for event, response_class, count in [
        ("push", "ack", 5),
        ("push", "5xx", 70),
        ("dead_letter", "dead_letter", 2),
        ("filter", "ack", 3),
        ("acked", "filter", 4),
        ("drop", "drop", 1),
    ]:
        add_events(row.name, event, at=utcnow(), count=count, response_class=response_class)
    assert live(client, row)["figures"]["oldest"] == "-"
    assert live(client, row)["sentence"] == (
        "Nothing waits. Counted in the last 24 hours: 5 acknowledged, 2 dead-lettered, 4 filtered out, "
        "1 expired, revoked or skipped. Redis knows of no push worker of region local. Messages that wait: 0."
    )


def test_in_backoff_the_next_attempt_is_that_of_a_message_which_has_not_failed_yet(
    api: Api, client: Client, redis_url: str, receiver: Receiver
) -> None:
    # Given messages of which some are tried again in ten minutes, and the others as soon as the pause ends
    receiver.default = 503
    policy = {"minimumBackoff": "600s", "maximumBackoff": "600s"}
    row = push_subscription(api, receiver.url, retryPolicy=policy)
    publish(api, 14)
    with Worker(redis_url):
        found = wait_for(lambda: re.search("Paused by push backoff .* next attempt in (.+)", sentence(client, row)))
    assert " min" not in found[1]


def test_a_message_that_blocks_its_key_is_named_when_the_others_were_left_to_the_database(
    api: Api, client: Client, redis_url: str, receiver: Receiver
) -> None:
    # Given a message that is refused, and more messages of its ordering key than Redis has room for
    receiver.default = lambda request: 500 if request.json["message"]["orderingKey"] == "bad" else 204
    row = push_subscription(api, receiver.url, enableMessageOrdering=True)
    bad, good = ({"data": "aGVsbG8=", "orderingKey": key} for key in ("bad", "good"))
    first, *_, last = api.post("topics/orders:publish", {"messages": [bad] * 60}).body["messageIds"]
    assert api.post("topics/orders:publish", {"messages": [good] * 8}).status == 200
    lane = Lane(row.pk, "local")
    with Worker(redis_url, PUSHHUB_BACKLOG_LIMIT="20"):
        wait_for(lambda: lane_state(default_backlog(), lane).left, what="the key is left to the database")
        wait_for(lambda: Delivery.objects.filter(message=int(first), attempts__gte=3).exists())
        # Then the page names it, and says how many wait for it
        assert f"The message {first} is refused again and again." in sentence(client, row)
        assert "Later messages of its ordering key wait for it: 59." in sentence(client, row)
        # And so do the pages of those that wait
        [delivery] = api.get(f"messages/{last}").body["deliveries"]
    assert delivery["blockedByMessageId"] == first
    assert delivery["reason"].startswith(f"It waits for the message {first}, which comes before it")


def test_a_clock_that_is_wrong_makes_no_worker_dead(api: Api, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    publish(api, 1)
    default_backlog().beat("push@test", regions=["local"])
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 120)
    assert "No push worker" not in sentence(client, row)


def test_figures_of_redis_are_not_shown_while_it_is_away(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = push_subscription(api, "http://127.0.0.1:40009/")
    assert live(client, row)["figures"]["window"] == "3"

    def away(*_: Any) -> None:
        raise redis.ConnectionError

    # The page that is open replaces only what it is told
    monkeypatch.setattr(statuses, "lane_views", away)
    figures = live(client, row)["figures"]
    assert {figures[name] for name in ("outstanding", "window", "acked", "backoff", "retrying")} == {"-"}


def sentence(client: Client, row: Subscription) -> str:
    return str(live(client, row)["sentence"])
