"""StreamingPull with message ordering: a key belongs to one stream, whatever the client ids are."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.models import Subscription, Topic
from tests.grpcservers import GrpcServer
from tests.integration.rpc.test_grpc import Stream, make
from tests.ports import wait_for

pytestmark = pytest.mark.any_database

#: As many as the client for Go opens.
STREAMS = 10
KEYS, MESSAGES = [f"key{number}" for number in range(5)], 100


@pytest.fixture
def channel(server: GrpcServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as channel:
        make(enableMessageOrdering=True)
        yield channel


@pytest.fixture
def open_stream(channel: grpc.Channel) -> Iterator[Callable[..., Stream]]:
    """Return a function that opens a stream. It is cancelled after the test."""
    with ExitStack() as stack:

        def open_one(**first: Any) -> Stream:
            stream = Stream(channel, **({"stream_ack_deadline_seconds": 600} | first))
            stack.callback(stream.cancel)
            return stream

        yield open_one


def publish(key: str, *numbers: int, size: int = 0) -> None:
    messages = [NewMessage(str(number).encode().ljust(size), {}, key) for number in numbers]
    publish_message(topic=Topic.objects.get(), messages=messages)


def texts(messages: Sequence[Any]) -> list[str]:
    return [entry.message.ordering_key + entry.message.data.decode().rstrip() for entry in messages]


class Holders:
    """Which stream holds messages of each key, as the streams' clients see it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, int]] = {}
        self.received: dict[str, list[str]] = defaultdict(list)
        self.shared: list[str] = []

    def take(self, stream: int, messages: Sequence[Any]) -> None:
        with self._lock:
            for entry in messages:
                key = entry.message.ordering_key
                holder, count = self._held.get(key, (stream, 0))
                if holder != stream:
                    self.shared.append(f"{key}: stream {holder} has {count} messages, and stream {stream} gets another")
                self._held[key] = (stream, count + 1)
                self.received[key].append(entry.message.data.decode())

    def leave(self, messages: Sequence[Any]) -> None:
        with self._lock:
            for entry in messages:
                key = entry.message.ordering_key
                stream, count = self._held[key]
                self._held[key] = (stream, count - 1)
                if count == 1:
                    del self._held[key]


def consume(number: int, stream: Stream, holders: Holders) -> None:
    """Acknowledge each response in two halves until the call is cancelled: there is always something to take over."""
    try:
        for answer in stream.answers:
            messages = list(answer.received_messages)
            holders.take(number, messages)
            half = len(messages) // 2
            for part in (messages[:half], messages[half:]):
                if part:
                    holders.leave(part)
                    stream.send(ack_ids=[entry.ack_id for entry in part])
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.CANCELLED, error


@pytest.mark.parametrize("client_ids", [["app"] * STREAMS, [f"app{n}" for n in range(STREAMS)], [""] * STREAMS])
def test_a_key_belongs_to_one_of_ten_streams(open_stream: Callable[..., Stream], client_ids: list[str]) -> None:
    """Given ten streams, when each acks what it gets bit by bit, then none gets a key of which another has messages."""
    for first in range(0, MESSAGES, 50):
        for key in KEYS:
            publish(key, *range(first, first + 50))
    holders = Holders()
    with ExitStack() as stack:
        for number, client_id in enumerate(client_ids):
            stream = open_stream(client_id=client_id, max_outstanding_messages=20)
            thread = threading.Thread(target=consume, args=(number, stream, holders))
            thread.start()
            stack.callback(thread.join)
            stack.callback(stream.cancel)
        wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
    assert not holders.shared
    assert holders.received == {key: [str(number) for number in range(MESSAGES)] for key in KEYS}


def test_a_stream_takes_over_when_the_one_of_its_client_has_closed(open_stream: Callable[..., Stream]) -> None:
    """Given a stream that has extended one of its leases, when it ends, then another one of its client goes on."""
    publish("k", 1, 2, 3)
    closing = open_stream(client_id="app", max_outstanding_messages=2)
    extended, _ = closing.messages(2)
    closing.send(modify_deadline_ack_ids=[extended.ack_id], modify_deadline_seconds=[600])
    successor = open_stream(client_id="app")
    publish("later", 1)
    assert texts(successor.messages(1)) == ["later1"], "key k belongs to the other stream"
    closing.end()
    assert texts(successor.messages(2)) == ["k2", "k3"], "their client has k1 and puts them behind it"


@pytest.mark.parametrize("reads", [True, False])
def test_a_key_of_a_stream_that_hangs_goes_on_when_its_leases_end(
    open_stream: Callable[..., Stream], reads: bool
) -> None:
    """Given a stream that acks nothing, or doesn't even read, then no other one gets its key before the leases end.

    Then whoever looks first gets it, which may be the same stream again.
    """
    publish("k", 1, 2, 3, size=100_000)
    hanging = open_stream(client_id="app", max_outstanding_messages=2)
    lane = f"{Lane(Subscription.objects.get().pk, 'local').root}"
    client = default_backlog().client
    wait_for(lambda: client.zcard(f"{lane}:l") == 2, what="the leases")
    if reads:
        assert texts(hanging.messages(2)) == ["k1", "k2"]
    other = open_stream(client_id="app")
    publish("later", 1)
    assert texts(other.messages(1)) == ["later1"]
    leases = client.zrange(f"{lane}:l", 0, 1)
    owners = client.hgetall(f"{lane}:v")

    def has_another() -> bool:
        if client.hgetall(f"{lane}:v") == owners:
            client.zadd(f"{lane}:l", dict.fromkeys(leases, 1), xx=True)  # as if their time had passed
        return client.hgetall(f"{lane}:v") != owners

    wait_for(has_another, what="another owner of the key")
    assert texts(other.messages(3)) == ["k1", "k2", "k3"]
