"""The events that real processes write into the journal, and the gauges that record subscriptions each minute."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from deliveries.deadletters.forwarding import forward_dead_letters, usable_topic_id
from deliveries.models import Delivery, GaugeMinute, GaugeRound, MetricMinute, Segment
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from deliveries.store.writelock import write_transaction
from deliveries.telemetry.journal import alarm, files
from deliveries.telemetry.journal import journal as journals
from deliveries.telemetry.journal.sealing import seal_closed
from deliveries.telemetry.journal.upkeep import seal_journals
from deliveries.telemetry.series.expiry import expire_metrics, expire_segments
from deliveries.telemetry.series.gauges import take_gauges
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from tests.ports import wait_for
from tests.receiver import Receiver
from tests.restapi import Api
from tests.workers import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_url")]

TOPIC = "projects/shop/topics/orders"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal's folder, to which this process and the workers that it starts write."""
    settings.JOURNAL = str(tmp_path / "segments")
    monkeypatch.setenv("PUSHHUB_JOURNAL", settings.JOURNAL)
    return Path(settings.JOURNAL)


def publish(count: int) -> list[str]:
    messages = [NewMessage(b"x" * number, {}) for number in range(count)]
    return publish_message(topic=get_topic(name=TOPIC), messages=messages)


def publish_one() -> list[str]:
    return publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})])


def rows(folder: Path) -> list[dict[str, Any]]:
    """Seal all closed journals of the folder, and return every event in it."""
    seal_closed(folder)
    events: list[dict[str, Any]] = []
    for path in sorted((folder / files.SEALED).rglob("*.parquet")):
        events += pq.read_table(path).to_pylist()
    return events


def close_own_journal() -> None:
    """Close this process's journal, so that it is sealed too."""
    journal = journals.journal()
    assert journal is not None
    journal.close()
    journals._journal_of.cache_clear()


def test_every_publish_and_every_attempt_is_journalled(
    api: Api, receiver: Receiver, redis_url: str, folder: Path
) -> None:
    """Given an endpoint that fails once, when messages are pushed until they are acked, then there is an event for each
    publish, the failure and each ack.
    """
    receiver.script([503])
    api.put("topics/orders")
    api.put("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    ids = publish(20)
    with Worker(redis_url):
        wait_for(lambda: not Delivery.objects.exists(), what="the last ack")
    close_own_journal()

    events = rows(folder)

    kinds = Counter((row["event"], row["response_class"], row["response_code"], row["outcome"]) for row in events)
    assert kinds == {
        ("publish", "success", 0, "accepted"): 20,
        ("push", "remote_server_5xx", 503, "nack"): 1,
        ("push", "ack", 204, "ack"): 20,
    }
    assert {row["message_id"] for row in events if row["outcome"] == "ack"} == set(ids)
    attempts = [row for row in events if row["event"] == "push"]
    assert {row["subscription"] for row in attempts} == {"projects/shop/subscriptions/push"}
    assert {row["host"] for row in attempts} == {"127.0.0.1"}
    assert {row["attempt"] for row in attempts} == {1, 2}
    assert {row["bytes"] for row in attempts} == set(range(20))
    assert all(row["latency_us"] > 0 and row["push_window"] >= 1 for row in attempts)
    assert all(row["publish_time"] < row["time"] for row in attempts)


def test_a_killed_worker_leaves_what_it_had_written(api: Api, receiver: Receiver, redis_url: str, folder: Path) -> None:
    """Given a worker that is killed after it wrote attempts, when its journal is sealed, then the segment has them."""
    api.put("topics/orders")
    api.put("subscriptions/push", {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}})
    with Worker(redis_url) as worker:
        publish(5)
        own_prefix = files.journal_name(opened_ms=0, number=1).partition("-0")[0]
        wait_for(
            lambda: any(
                not path.name.startswith(own_prefix) and path.stat().st_size for path in files.journals(folder)
            ),
            what="the worker's journal",
        )
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()
    close_own_journal()

    assert Counter(row["event"] for row in rows(folder))["push"] >= 1


def test_acks_and_nacks_of_pulled_messages_are_journalled(api: Api, folder: Path) -> None:
    """Given pulled messages, when one is acked and one is nacked, then there is an event for each."""
    api.put("topics/orders")
    api.put("subscriptions/pull", {"topic": TOPIC})
    publish(2)
    received = api.post("subscriptions/pull:pull", {"maxMessages": 2}).body["receivedMessages"]
    api.post("subscriptions/pull:acknowledge", {"ackIds": [received[0]["ackId"]]})
    modify = {"ackIds": [received[1]["ackId"]], "ackDeadlineSeconds": 0}
    api.post("subscriptions/pull:modifyAckDeadline", modify)
    close_own_journal()

    pulled = [row for row in rows(folder) if row["event"] == "pull"]

    assert sorted((row["outcome"], row["message_id"]) for row in pulled) == [
        ("ack", received[0]["message"]["messageId"]),
        ("nack", received[1]["message"]["messageId"]),
    ]


def test_dead_letters_are_journalled(api: Api, folder: Path, redis_url: str) -> None:
    """Given an endpoint that always fails, when the last attempt has failed, then the dead letter is an event too."""
    api.put("topics/orders")
    api.put("topics/letters")
    policy = {"deadLetterTopic": "projects/shop/topics/letters", "maxDeliveryAttempts": 5}
    quick = {"minimumBackoff": "0.01s", "maximumBackoff": "0.01s"}
    with Receiver(default=503) as receiver, Worker(redis_url):
        body = {"topic": TOPIC, "pushConfig": {"pushEndpoint": receiver.url}}
        api.create("subscriptions/push", {**body, "deadLetterPolicy": policy, "retryPolicy": quick})
        (message_id,) = publish_one()
        wait_for(lambda: not Delivery.objects.exists(), what="the dead letter")
    close_own_journal()

    events = rows(folder)

    assert [row["outcome"] for row in events if row["event"] == "push"] == ["nack"] * 5
    (letter,) = [row for row in events if row["event"] == "dead_letter"]
    assert (letter["message_id"], letter["attempt"]) == (message_id, 5)
    assert letter["subscription"] == "projects/shop/subscriptions/push"


def test_dead_letters_are_journalled_after_the_commit(api: Api, folder: Path) -> None:
    """Given a message at its last attempt, when it is forwarded to the dead-letter topic, then there is an event for
    the dead letter and one for its publish.
    """
    api.put("topics/orders")
    api.put("topics/dead")
    policy = {"deadLetterTopic": "projects/shop/topics/dead", "maxDeliveryAttempts": 5}
    api.put("subscriptions/pull", {"topic": TOPIC, "deadLetterPolicy": policy})
    [message_id] = publish(1)

    attempts = {int(message_id): 5}
    pk = Subscription.objects.get().pk
    with write_transaction():
        forwarded = forward_dead_letters(
            subscription_id=pk, region="local", attempts=attempts, topic_id=usable_topic_id(pk)
        )
    forwarded.announce_all()
    close_own_journal()

    events = {(row["event"], row["subscription"] or row["topic"]): row for row in rows(folder)}
    assert set(events) == {
        ("publish", TOPIC),
        ("publish", "projects/shop/topics/dead"),
        ("dead_letter", "projects/shop/subscriptions/pull"),
    }
    letter = events["dead_letter", "projects/shop/subscriptions/pull"]
    assert (letter["message_id"], letter["attempt"]) == (message_id, 5)


def test_messages_are_published_even_if_the_journal_cannot_be_written(api: Api, folder: Path) -> None:
    """Given a folder that cannot be created, then messages are published nevertheless, and there is an alarm."""
    folder.write_text("no folder")
    api.put("topics/orders")
    api.put("subscriptions/pull", {"topic": TOPIC})

    assert len(publish(3)) == 3

    wait_for(alarm.alarms, what="the alarm")
    [disk_alarm] = alarm.alarms()
    assert (disk_alarm.reason, disk_alarm.lost) == ("Not a directory", 3)
    assert Delivery.objects.count() == 3
    assert seal_journals() == 0
    close_own_journal()


def test_gauges_record_the_state_of_each_subscription(api: Api) -> None:
    """Given messages that wait and an idle subscription, when gauges are taken twice in a minute, then there is one
    row for each subscription, with the newest state.
    """
    api.put("topics/orders")
    api.put("subscriptions/busy", {"topic": TOPIC, "pushConfig": {"pushEndpoint": "http://127.0.0.1:40009/"}})
    publish(3)
    api.put("subscriptions/idle", {"topic": TOPIC})
    now = datetime.now(UTC) + timedelta(seconds=100)

    take_gauges(clock=lambda: now.replace(second=1))
    assert take_gauges(clock=lambda: now.replace(second=59)) == 2

    busy, idle = GaugeMinute.objects.order_by("resource")
    assert (busy.resource, busy.project, busy.undelivered) == ("projects/shop/subscriptions/busy", "shop", 3)
    assert busy.outstanding == busy.push_window == 3
    assert 0 < busy.oldest_unacked_seconds < 200
    assert (idle.undelivered, idle.oldest_unacked_seconds, idle.push_window) == (0, 0, 0)


def test_old_rows_and_segments_are_deleted(folder: Path, settings: Any) -> None:
    """Given rows and segments younger and older than their retention, when they expire, then the older are deleted."""
    gauge = {"project": "p", "undelivered": 0, "oldest_unacked_seconds": 0, "outstanding": 0, "push_window": 0}
    for days in (6, 9):
        GaugeMinute.objects.create(resource="r", at=NOON - timedelta(days=days), backoff_ms=0, **gauge)
        GaugeRound.objects.create(at=NOON - timedelta(days=days))
        Segment.objects.create(name=f"{days}", state="counted", rows=1, job="test", at=NOON - timedelta(days=days * 2))
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    paths = []
    for days in (1, 8):
        paths.append(files.segment_path(folder, f"host-1-{now_ms - days * 86_400_000:013d}-1"))
        paths[-1].parent.mkdir(parents=True)
        paths[-1].write_bytes(b"x")

    expire_metrics(clock=lambda: NOON)
    assert expire_segments(folder) == 1

    assert GaugeMinute.objects.get().at == GaugeRound.objects.get().at == NOON - timedelta(days=6)
    assert Segment.objects.get().name == "6"
    assert [path.exists() for path in paths] == [True, False]
    assert not paths[1].parent.exists()
    assert not MetricMinute.objects.exists()


def test_a_stray_file_does_not_stop_the_deletion_of_segments(folder: Path, settings: Any) -> None:
    """Given stray files in the folders of the two oldest hours, then all old segments are deleted nevertheless."""
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    paths = [files.segment_path(folder, f"host-1-{now_ms - days * 86_400_000:013d}-1") for days in (12, 11, 10, 1)]
    for path in paths:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    strays = [paths[0].with_name(".nfs000000000001"), paths[1].with_name("notes.txt")]
    for stray in strays:
        stray.write_bytes(b"x")

    assert expire_segments(folder) == 3

    assert [path.exists() for path in paths] == [False, False, False, True]
    assert all(stray.exists() for stray in strays)
    assert not paths[2].parent.exists()
