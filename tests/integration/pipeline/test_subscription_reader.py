"""A subscription as a source of Spark, without Java: what the driver and the tasks call, and what that leases."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType, TimestampType

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.pipeline.datasource import leases, triggers
from deliveries.pipeline.datasource.source import PushHubDataSource
from deliveries.pipeline.datasource.subscription import SubscriptionReader, SubscriptionStreamReader
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from pushhub.common.errors import InvalidArgument
from subscriptions.models import Subscription
from subscriptions.selectors import get_topic
from subscriptions.services.subscriptions import create_subscription, delete_subscription, update_subscription
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.lanes import end_leases, lease_ends
from tests.ports import wait_for

TOPIC = "projects/shop/topics/orders"
WORKER = "projects/shop/subscriptions/worker"
TEXT = StringType()
SCHEMA = StructType(
    [
        StructField("message_id", TEXT),
        StructField("publish_time", TimestampType()),
        StructField("data", BinaryType()),
        StructField("attributes", MapType(TEXT, TEXT)),
        StructField("ordering_key", TEXT),
        StructField("delivery_attempt", IntegerType()),
    ]
)
Open = Callable[..., SubscriptionStreamReader]


@pytest.fixture
def worker(server: GrpcServer) -> str:
    create_topic(name=TOPIC, topic={})
    create_subscription(name=WORKER, subscription={"topic": TOPIC})
    return WORKER


def source(**options: Any) -> PushHubDataSource:
    named = {"subscription": WORKER, "idleSeconds": 1} | options
    return PushHubDataSource(CaseInsensitiveDict({name: str(value) for name, value in named.items()}))


@pytest.fixture
def open_stream(worker: str) -> Iterator[Open]:
    """Opens the source as Spark's driver does; each is stopped at the end."""
    opened = []

    def open_one(**options: Any) -> SubscriptionStreamReader:
        reader = source(**options).streamReader(SCHEMA)
        assert isinstance(reader, SubscriptionStreamReader)
        opened.append(reader)
        return reader

    yield open_one
    for reader in opened:
        reader.stop()


def publish(*texts: str, key: str = "") -> list[str]:
    messages = [NewMessage(text.encode(), {"n": text} if text == "0" else {}, key) for text in texts]
    return publish_message(topic=get_topic(name=TOPIC), messages=messages)


def rows_of(parts: Any, schema: StructType = SCHEMA) -> list[dict[str, Any]]:
    """Read partitions as tasks do, which get copies of them and of a reader that has leased nothing."""
    reader, parts = pickle.loads(pickle.dumps((source().streamReader(schema), parts)))
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def texts_of(parts: Any) -> list[str]:
    return sorted(row["data"].decode() for row in rows_of(parts))


def next_batch(reader: SubscriptionStreamReader, start: dict[str, int]) -> tuple[dict[str, int], Any]:
    """Return the end of the next batch that has messages, and its partitions."""
    end = start

    def comes() -> bool:
        nonlocal end
        end = reader.latestOffset(start, None)
        return end != start

    wait_for(comes, what="a batch")
    return end, reader.partitions(start, end)


def test_a_batch_is_acknowledged_when_spark_asks_for_the_next_one(open_stream: Open) -> None:
    ids = publish("0", "1", key="k")
    reader = open_stream()
    start = reader.initialOffset()
    end, parts = next_batch(reader, start)
    rows = rows_of(parts)
    assert [(row["message_id"], row["data"], row["ordering_key"]) for row in rows] == [
        (ids[0], b"0", "k"),
        (ids[1], b"1", "k"),
    ]
    assert (rows[0]["attributes"], rows[1]["attributes"], rows[0]["delivery_attempt"]) == ([("n", "0")], [], None)
    assert rows[0]["publish_time"].utcoffset() is not None

    assert reader.latestOffset(start, None) == end, "the batch is planned, not committed"
    assert rows_of(reader.partitions(start, end)) == rows, "a batch is read as often as Spark likes"
    assert Delivery.objects.count() == 2
    assert reader.latestOffset(end, None) == end
    assert not Delivery.objects.exists()


def test_a_commit_acknowledges_too_and_the_next_batch_waits_already(open_stream: Open) -> None:
    publish("0", "1", "2")
    reader = open_stream(partitions=1, maxMessagesPerTrigger=2)
    end, parts = next_batch(reader, reader.initialOffset())
    assert texts_of(parts) == ["0", "1"]
    reader.commit(reader.initialOffset())
    assert Delivery.objects.count() == 3, "that was the end of an earlier batch"
    reader.commit(end)
    assert Delivery.objects.count() == 1
    _, parts = next_batch(reader, end)
    assert texts_of(parts) == ["2"]


def test_a_batch_that_is_acknowledged_too_late_comes_again_with_exactly_once_delivery(open_stream: Open) -> None:
    change = {"subscription": {"enableExactlyOnceDelivery": True}, "updateMask": "enableExactlyOnceDelivery"}
    update_subscription(name=WORKER, request=change)
    publish("0")
    reader = open_stream()
    end, _ = next_batch(reader, reader.initialOffset())
    default_backlog().forget(Lane(Subscription.objects.get().pk, "local"))  # which ends its leases
    reader.commit(end)
    _, parts = next_batch(reader, end)
    assert texts_of(parts) == ["0"]


def test_the_bytes_of_a_batch_are_those_of_attributes_too(open_stream: Open) -> None:
    """A task's messages travel within it, and Spark bounds its bytes."""
    messages = [NewMessage(str(number).encode(), {"a": "x" * 1000}) for number in range(3)]
    publish_message(topic=get_topic(name=TOPIC), messages=messages)
    reader = open_stream(partitions=1, maxBytesPerTrigger=1500)
    end, parts = next_batch(reader, reader.initialOffset())
    assert len(rows_of(parts)) == 1
    reader.commit(end)
    assert Delivery.objects.count() == 2


def test_a_batch_of_an_earlier_process_is_empty_and_its_messages_come_in_a_later_one(open_stream: Open) -> None:
    """Given a query that ended within a batch, when it is started again and Spark repeats that batch, then the batch is
    empty, because a sink that has it already would skip it, and the messages come in the next one.
    """
    publish("0", "1")
    first = open_stream()
    end, parts = next_batch(first, first.initialOffset())
    assert texts_of(parts) == ["0", "1"]
    first.stop()
    second = open_stream()
    assert second.partitions(first.initialOffset(), end) == []
    second.commit(end)
    assert Delivery.objects.count() == 2
    later, parts = next_batch(second, end)
    assert later["pulled"] > end["pulled"]
    assert texts_of(parts) == ["0", "1"]


def test_a_spark_that_says_not_how_far_it_has_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "limits", None)
    with pytest.raises(InvalidArgument, match=r"needs Spark 4\.2 or newer"):
        source(emulatorHost="127.0.0.1:1").streamReader(SCHEMA)


def test_available_now_ends_at_messages_that_were_published_after_its_start(open_stream: Open) -> None:
    publish("0")
    reader = open_stream()
    reader.prepareForTriggerAvailableNow()
    end, parts = next_batch(reader, reader.initialOffset())
    assert texts_of(parts) == ["0"]
    publish("later")
    assert reader.latestOffset(end, None) == end
    assert Delivery.objects.count() == 1
    reader.stop()
    another = open_stream()
    assert texts_of(next_batch(another, end)[1]) == ["later"], "nobody touched its lease, so it is due at once"


def test_a_table_acknowledges_nothing_and_gives_all_messages_back(worker: str) -> None:
    publish("0", "1", "2")
    reader = source().reader(SCHEMA)
    assert isinstance(reader, SubscriptionReader)
    assert texts_of(reader.partitions()) == ["0", "1", "2"]
    only_data = StructType(SCHEMA.fields[2:3])
    few = source(maxMessages=2, partitions=1).reader(only_data)
    # The server waits a second for the last acknowledgements of a stream that has ended. Which two come is its affair.
    wait_for(lambda: [list(row) for row in rows_of(few.partitions(), only_data)] == [["data"]] * 2, what="two messages")
    assert list(Delivery.objects.values_list("attempts", flat=True)) == [0, 0, 0]


def test_leases_are_extended_until_the_batch_is_acknowledged(
    open_stream: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "EXTEND_SECONDS", 0.05)
    publish("0", "1", "2")
    reader = open_stream(partitions=1, maxMessagesPerTrigger=2)
    end, _ = next_batch(reader, reader.initialOffset())
    wait_for(lambda: len(lease_ends()) == 3, what="the message of the next batch")
    before = lease_ends()
    wait_for(lambda: all(now > before[name] for name, now in lease_ends().items()), what="extended leases")
    reader.commit(end)
    assert len(lease_ends()) == 1


def test_a_killed_driver_loses_no_message(worker: str, server: GrpcServer, open_stream: Open) -> None:
    """Given a driver with a batch at work and a message that waits, when it is killed, then that message comes at once,
    and those of the batch when their leases have lapsed.
    """
    publish("0", "1", "2")
    options = {"emulatorHost": server.address, "partitions": "1", "maxMessagesPerTrigger": "2"}
    script = f"from tests.integration.pipeline.sources import hold; hold({options})"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "b'0' b'1'\n"
        wait_for(lambda: len(lease_ends()) == 3, what="the message of the next batch")
        driver.kill()
    reader = open_stream()
    end, parts = next_batch(reader, reader.initialOffset())
    assert texts_of(parts) == ["2"]
    end_leases(besides=1)
    texts: list[str] = []
    while len(texts) < 2:
        end, parts = next_batch(reader, end)
        texts += texts_of(parts)
    assert sorted(texts) == ["0", "1"]


def test_a_stream_that_breaks_is_opened_again_and_its_batch_stays_at_work(
    worker: str, redis_url: str, live_server: Any, open_stream: Open
) -> None:
    """Given a batch at work and a message that waits, when the server is started again, then the stream brings the
    message that waited, and not those at work.
    """
    with GrpcServer(redis_url, rest=live_server.url) as first:
        reader = open_stream(emulatorHost=first.address, partitions=1, maxMessagesPerTrigger=2)
        publish("0", "1", "2")
        end, parts = next_batch(reader, reader.initialOffset())
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_GRPC=first.address):
        assert texts_of(parts) == ["0", "1"]
        _, parts = next_batch(reader, end)
        assert texts_of(parts) == ["2"]
        assert Delivery.objects.count() == 1


def test_a_stream_that_is_refused_fails_the_query(open_stream: Open) -> None:
    reader = open_stream()
    assert reader.latestOffset(reader.initialOffset(), None) == reader.initialOffset()
    delete_subscription(name=WORKER)
    with pytest.raises(Exception, match=r"Resource not found \(resource=worker\)"):
        next_batch(reader, reader.initialOffset())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscription": "worker"}, "worker"),
        ({"subscriptions": "x"}, "no option 'subscriptions'"),
        ({"emulatorHost": "a:1", "maxMessagesPerTrigger": "many"}, "maxMessagesPerTrigger is a number above 0"),
        ({"emulatorHost": "a:1", "partitions": 0}, "partitions is a number above 0"),
        ({"endpoint": "pubsub:443"}, "credentialsFile or tokenFile"),
        ({"endpoint": "pubsub:443", "credentialsFile": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"endpoint": "pubsub:443", "credentialsFile": __file__}, "not the key file of a service account"),
        ({"endpoint": "pubsub:443", "credentialsFile": "a", "tokenFile": "b"}, "not both"),
        ({"emulatorHost": "127.0.0.1:1", "tokenFile": "b"}, "takes no credentials"),
        ({}, "Give the option endpoint, or emulatorHost"),
    ],
    ids=lambda value: " ".join(value) or "none" if isinstance(value, dict) else "",
)
def test_a_wrong_option_is_named(options: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    with pytest.raises(InvalidArgument, match=words):
        source(**options).streamReader(SCHEMA)


def test_a_key_file_of_google_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable often names one, for other services. What it signs would be good at Google."""
    (file := tmp_path / "key.json").write_text('{"token_uri": "https://oauth2.googleapis.com/token"}')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(InvalidArgument, match="a key of Google Cloud"):
        source(endpoint="pubsub:443").streamReader(SCHEMA)


def test_a_column_that_a_subscription_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="no column 'step'. It has: message_id"):
        source().reader(StructType([StructField("step", TEXT)]))
