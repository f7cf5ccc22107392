"""What a streaming pull counts: messages, acks and their latency, requests, responses, and that it is open."""

from __future__ import annotations

from collections import Counter

import grpc
import pytest
from pytest_django.live_server_helper import LiveServer

from deliveries.backlog.default import default_backlog
from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from deliveries.telemetry.series.openstreams import open_streams
from deliveries.telemetry.sinks.counters import KEY, read_counters
from subscriptions.models import Subscription, Topic
from tests.grpcservers import GrpcServer
from tests.integration.rpc.test_grpc import Stream, make
from tests.ports import wait_for

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

ACK_LATENCY = "subscription_ack_latency_seconds"


def counted() -> Counter[tuple[str, ...]]:
    """Return the counters of subscriptions by name and labels; a latency without its bucket."""
    total: Counter[tuple[str, ...]] = Counter()
    for value in read_counters(default_backlog().clients):
        if value.labels[-1:] != ("sum",):
            labels = value.labels[:-1] if value.kind.is_distribution else value.labels
            total[value.kind.field, *labels] += value.value
    return total


def test_a_stream_is_counted(redis_url: str, live_server: LiveServer) -> None:
    """Given a stream that gets three messages, when it acks two and extends one, then each is counted as its own."""
    make()
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_METRICS="on") as server:
        with grpc.insecure_channel(server.address) as channel:
            stream = Stream(channel)
            pk = Subscription.objects.get().pk
            wait_for(lambda: open_streams(default_backlog().client) == {pk: 1}, what="an open stream")
            publish_message(topic=Topic.objects.get(), messages=[NewMessage(b"x", {})] * 3)
            ack_ids = [message.ack_id for message in stream.messages(3)]
            stream.send(ack_ids=ack_ids[:2])
            stream.send(modify_deadline_ack_ids=ack_ids[2:], modify_deadline_seconds=[60])
            acks = ("subscription_ack_message_count", "streaming_pull")
            wait_for(lambda: counted()[acks] == 2, what="two acks of the stream")
            stream.end()
            list(stream.answers)
        wait_for(lambda: not open_streams(default_backlog().client), what="the end of the stream")
    values = counted()
    assert values["subscription_sent_message_count", "streaming_pull"] == 3
    assert values[ACK_LATENCY, "streaming_pull"] == 2
    assert values["subscription_mod_ack_deadline_message_count", "streaming_pull"] == 1
    assert values["subscription_streaming_pull_ack_request_count", "success"] == 1
    assert values["subscription_streaming_pull_mod_ack_deadline_request_count", "success"] == 1
    assert values["subscription_streaming_pull_response_count", "success"] >= 1
    assert not [key for key in values if "pull" in key[1:]]
    default_backlog().client.delete(KEY)
