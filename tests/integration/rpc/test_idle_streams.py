"""Streams that wait: what wakes them, what recovers from a lost wake-up, and how many may be open."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message
from pytest_django.live_server_helper import LiveServer

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import pull_bell
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from subscriptions.models import Subscription, Topic
from tests.grpcservers import GrpcServer
from tests.integration.rpc.test_grpc import SUBSCRIPTION, Stream, make
from tests.ports import wait_for

pytestmark = pytest.mark.django_db(transaction=True)

#: Nothing but a ring wakes a stream.
NO_LOOKS = "from deliveries.rpc import bell; bell.LOOK_SECONDS = bell.PULL_SECONDS = 1e6"
#: A stream that has been idle for so long has begun to wait again.
IDLE = "from deliveries.rpc import streaming; streaming.AUTHORIZE_SECONDS = 0.01"
REFUSALS = {
    "a process": ({"PUSHHUB_GRPC_STREAMS": "1"}, "Too many streams at once: close some, or try again later."),
    "a project": (
        {"PUSHHUB_QUOTAS": "on", "PUSHHUB_QUOTA_STREAMING_PULL_CONNECTIONS": "1"},
        'You have exceeded your StreamingPull connection quota (project="shop"). Refer to '
        "https://cloud.google.com/pubsub/quotas for more information.",
    ),
}


@contextmanager
def channel_of(redis_url: str, live_server: LiveServer, *, first: str = "", **settings: str) -> Iterator[grpc.Channel]:
    make()
    with (
        GrpcServer(redis_url, rest=live_server.url, first=first, **settings) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield channel


def publish(text: bytes) -> None:
    publish_message(topic=Topic.objects.get(), messages=[NewMessage(text, {})])


def listeners() -> int:
    [(_, count)] = default_backlog().client.pubsub_numsub(pull_bell(Subscription.objects.get().pk))
    return int(count)


def test_a_ring_alone_wakes_an_idle_stream(redis_url: str, live_server: LiveServer) -> None:
    with channel_of(redis_url, live_server, first=f"{NO_LOOKS}\n{IDLE}") as channel:
        stream = Stream(channel)
        wait_for(listeners, what="the stream")
        for text in (b"1", b"2"):
            publish(text)
            [message] = stream.messages(1)
            assert message.message.data == text
            stream.send(ack_ids=[message.ack_id])
        stream.cancel()


def test_an_idle_stream_answers_a_request_without_content_at_once(redis_url: str, live_server: LiveServer) -> None:
    """Google's clients open another stream after 15 s without the answer."""
    with channel_of(redis_url, live_server, first=NO_LOOKS) as channel:
        stream = Stream(channel, protocol_version=1)
        wait_for(listeners, what="the stream")
        for _ in range(2):
            stream.send()
            assert not next(stream.answers).received_messages
        stream.cancel()


@pytest.mark.parametrize("lost", ["ring", "scripts", "everything"])
def test_an_idle_stream_gets_a_message_whatever_was_lost(redis_url: str, live_server: LiveServer, lost: str) -> None:
    with channel_of(redis_url, live_server) as channel:
        stream, client = Stream(channel), default_backlog().client
        wait_for(listeners, what="the stream")
        publish(b"before")
        [message] = stream.messages(1)
        stream.send(ack_ids=[message.ack_id])
        if lost == "ring":
            client.client_pause(100, all=False)
            client.client_kill_filter(_type="pubsub")
        elif lost == "scripts":
            client.function_flush()
        publish(b"after")
        if lost == "everything":
            client.flushall()
        assert b"after" in {message.message.data for message in stream.messages(1)}
        stream.cancel()


def test_a_closed_stream_leaves_its_wake_ups_to_the_others(redis_url: str, live_server: LiveServer) -> None:
    """Given two idle streams, when one closes, then the other gets all messages, and nobody listens after both."""
    with channel_of(redis_url, live_server) as channel:
        closed, stream = Stream(channel), Stream(channel)
        wait_for(listeners, what="the streams")
        closed.cancel()
        for number in range(5):
            publish(str(number).encode())
        assert len(stream.messages(5)) == 5
        stream.cancel()
        wait_for(lambda: not listeners(), what="the end of both")


def test_each_stream_gets_what_the_others_have_no_room_for(redis_url: str, live_server: LiveServer) -> None:
    """Given that looks are rare, when ten messages come at once, then streams with room for one get one each."""
    with channel_of(redis_url, live_server, first=NO_LOOKS) as channel:
        streams = [Stream(channel, max_outstanding_messages=1) for _ in range(10)]
        wait_for(listeners, what="the streams")
        publish_message(topic=Topic.objects.get(), messages=[NewMessage(b"x", {})] * 10)
        for stream in streams:
            assert len(stream.messages(1)) == 1
        for stream in streams:
            stream.cancel()


@pytest.mark.parametrize("of", REFUSALS)
def test_a_stream_too_many_is_refused_and_the_official_client_recovers(
    redis_url: str, live_server: LiveServer, monkeypatch: pytest.MonkeyPatch, of: str
) -> None:
    settings, sentence = REFUSALS[of]
    received = threading.Event()

    def receive(message: Message) -> None:
        message.ack()
        received.set()

    make()
    with (
        GrpcServer(redis_url, rest=live_server.url, **settings) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stream = Stream(channel, max_outstanding_messages=1)
        publish(b"held")
        assert stream.messages(1)
        assert Stream(channel).refusal() == ("RESOURCE_EXHAUSTED", sentence)
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        with SubscriberClient() as client:
            future = client.subscribe(SUBSCRIPTION, callback=receive)
            publish(b"waits")
            stream.cancel()
            wait_for(received.is_set, what="the message")
            assert not future.done(), future.exception()
            future.cancel()
            future.result(timeout=60)
