"""The gRPC port: what it serves, both transports on it, who is let in, and streams that misbehave."""

from __future__ import annotations

import http.client
import json
import queue
import re
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import redis
import requests
from django.db import connection, transaction
from google.iam.v1 import iam_policy_pb2
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1.types import pubsub
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pytest_django.live_server_helper import LiveServer

from deliveries.backlog.default import default_backlog
from deliveries.backlog.records import Lane
from deliveries.models import Delivery
from deliveries.publish.service import publish_message
from deliveries.pull.deadlines import modify_ack_deadlines
from deliveries.pull.leasing import pull_messages
from deliveries.pull.settling import acknowledge_messages
from deliveries.rpc import streaming
from deliveries.rules.payload import NewMessage
from deliveries.store.writelock import write_transaction
from pushhub.runtime import grpcserver
from subscriptions.iam import grants
from subscriptions.iam.methods import METHODS
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.models import Subscription
from subscriptions.models.iam import AuditEntry
from subscriptions.resources.subscriptions import subscription_described
from subscriptions.selectors import get_topic
from subscriptions.services.projects import create_project
from subscriptions.services.subscriptions import (
    create_subscription,
    delete_subscription,
    modify_push_config,
    pause_subscription,
)
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.ports import wait_for

PROJECT = "projects/shop"
TOPIC = f"{PROJECT}/topics/orders"
DEAD_TOPIC = f"{PROJECT}/topics/dead"
SUBSCRIPTION = f"{PROJECT}/subscriptions/worker"
StreamingPullRequest = pubsub.StreamingPullRequest.pb()
ADA = "user:ada@example.com"


@pytest.fixture
def strict(transactional_db: None, redis_url: str, live_server: LiveServer) -> Iterator[GrpcServer]:
    """Start a server that refuses callers without a token."""
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_ANONYMOUS="", PUSHHUB_DEVELOPMENT="0") as started:
        yield started


@pytest.fixture
def channel(server: GrpcServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def make(**fields: Any) -> None:
    create_topic(name=TOPIC, topic={})
    create_subscription(name=SUBSCRIPTION, subscription={"topic": TOPIC, **fields})


def call(channel: grpc.Channel, method: str, request: Any, answer: Any = Empty, **options: Any) -> Any:
    service, _, name = method.rpartition(".")
    stub = channel.unary_unary(
        f"/{service}/{name}",
        request_serializer=lambda message: message if isinstance(message, bytes) else message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return stub(request, timeout=30, **options)


def refused(channel: grpc.Channel, method: str, request: Any, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, method, request, **options)
    return caught.value


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


class Stream:
    """A StreamingPull call, request by request."""

    def __init__(self, channel: grpc.Channel, **first: Any) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self.send(**({"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 10} | first))
        self.answers = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=StreamingPullRequest.SerializeToString,
            response_deserializer=pubsub.StreamingPullResponse.pb().FromString,
        )(iter(self._requests.get, None), timeout=60)

    def send(self, **fields: Any) -> None:
        self._requests.put(StreamingPullRequest(**fields))

    def end(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        """End the call, and gRPC's thread that waits for our next request."""
        self.answers.cancel()
        self.end()

    def messages(self, count: int) -> list[Any]:
        received: list[Any] = []
        while len(received) < count:
            received.extend(next(self.answers).received_messages)
        return received

    def refusal(self) -> tuple[str, str]:
        with pytest.raises(grpc.RpcError) as caught:
            list(self.answers)
        self.end()
        return caught.value.code().name, caught.value.details()


def publish(channel: grpc.Channel, *texts: str) -> list[str]:
    messages = [{"data": text.encode()} for text in texts]
    request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=messages)
    answer = call(channel, "google.pubsub.v1.Publisher.Publish", request, pubsub.PublishResponse.pb())
    return list(answer.message_ids)


def test_each_served_method_has_an_entry_in_the_table_of_permissions() -> None:
    served = {f"{name}.{method}" for name, methods in grpcserver.services().items() for method in methods}
    assert len(served) > 20
    assert served - set(METHODS) == set()


def test_rest_answers_on_the_same_port(server: GrpcServer) -> None:
    created = requests.put(f"http://{server.address}/v1/{TOPIC}", json={}, timeout=30)
    assert created.json()["name"] == TOPIC
    large = {"messages": [{"data": "QUFB" * 500_000}]}
    answer = requests.post(f"http://{server.address}/v1/{TOPIC}:publish", json=large, timeout=30)
    assert len(answer.json()["messageIds"]) == 1


def test_a_connection_that_sends_nothing_or_nonsense_does_no_harm(server: GrpcServer, channel: grpc.Channel) -> None:
    host, _, port = server.address.partition(":")
    with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as odd:
        odd.sendall(b"\x16\x03\x01 PRI * HTTP/2.0 nonsense\r\n\r\n")
        odd.shutdown(socket.SHUT_WR)
        make()
        assert publish(channel, "hello")
        silent.close()
    assert publish(channel, "hello again")


def test_health(channel: grpc.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber", "google.iam.v1.IAMPolicy"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_describes_the_services(channel: grpc.Channel) -> None:
    def ask(**question: Any) -> Any:
        request = reflection_pb2.ServerReflectionRequest(**question)
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        return next(iter(stub.ServerReflectionInfo(iter([request]), timeout=30)))

    listed = {service.name for service in ask(list_services="").list_services_response.service}
    assert {"google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber", "google.iam.v1.IAMPolicy"} <= listed
    messages = ("google.pubsub.v1.PubsubMessage", "google.iam.v1.Policy")
    for symbol in ("google.pubsub.v1.Subscriber", "google.iam.v1.IAMPolicy", "grpc.health.v1.Health", *messages):
        assert ask(file_containing_symbol=symbol).file_descriptor_response.file_descriptor_proto


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    assert refused(channel, "google.pubsub.v1.Publisher.Nonsense", Empty()).code() == grpc.StatusCode.UNIMPLEMENTED


def test_malformed_messages_are_refused(channel: grpc.Channel) -> None:
    error = refused(channel, "google.pubsub.v1.Publisher.GetTopic", b"\xff\xff\xff")
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_refusal_names_the_field_in_its_details(channel: grpc.Channel) -> None:
    error = refused(channel, "google.pubsub.v1.Publisher.CreateTopic", pubsub.Topic.pb()(name="nonsense"))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    (details,) = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    detail = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(detail)
    assert detail.field_violations[0].field == "name"


def test_each_refusal_has_a_status_in_its_trailers(channel: grpc.Channel) -> None:
    """Google's Python client takes an ack that is refused without one for a confirmed ack."""
    request = pubsub.AcknowledgeRequest.pb()(subscription=SUBSCRIPTION, ack_ids=["x"])
    error = refused(channel, "google.pubsub.v1.Subscriber.Acknowledge", request)
    (details,) = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert (status.code, status.message) == (error.code().value[0], error.details())
    assert error.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("has_credentials", [False, True])
def test_an_error_about_many_lost_leases_fits_into_what_the_client_takes(
    server: GrpcServer, has_credentials: bool
) -> None:
    """The Python client reports acks as confirmed if their error is too large, and takes 8 KiB from an emulator."""
    make(enableExactlyOnceDelivery=True)
    subscription = Subscription.objects.get()
    publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"x", {})] * 200)
    ack_ids = [message.ack_id for message in pull_messages(subscription=subscription, max_messages=200)]
    modify_ack_deadlines(subscription=subscription, ack_ids=ack_ids, seconds=0)
    request = pubsub.AcknowledgeRequest.pb()(subscription=SUBSCRIPTION, ack_ids=ack_ids)
    options = [("grpc.max_metadata_size", 4 << 20)] if has_credentials else []

    with grpc.insecure_channel(server.address, options=options) as channel:
        metadata = bearer("owner") if has_credentials else ()
        error = refused(channel, "google.pubsub.v1.Subscriber.Acknowledge", request, metadata=metadata)

    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    [detail] = status_pb2.Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"]).details
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert set(info.metadata) <= set(ack_ids)
    assert len(info.metadata) == 200 if has_credentials else 20 < len(info.metadata) < 200


def test_a_caller_needs_a_token_and_a_permission(strict: GrpcServer) -> None:
    create_project(project_id="shop")
    make()
    request = pubsub.GetTopicRequest.pb()(topic=TOPIC)
    method = "google.pubsub.v1.Publisher.GetTopic"
    with grpc.insecure_channel(strict.address) as channel:
        assert refused(channel, method, request).code() == grpc.StatusCode.UNAUTHENTICATED
        for wrong in ("nonsense", "owner"):
            assert refused(channel, method, request, metadata=bearer(wrong)).code() == grpc.StatusCode.UNAUTHENTICATED
        token = access_tokens.create_access_token(member=ADA).token
        error = refused(channel, method, request, metadata=bearer(token))
        assert error.code() == grpc.StatusCode.PERMISSION_DENIED
        assert "pubsub.topics.get" in error.details()
        grants.grant_role(get_resource(TOPIC), role="roles/pubsub.viewer", member=ADA)

        def answered() -> Any:
            try:
                return call(channel, method, request, pubsub.Topic.pb(), metadata=bearer(token))
            except grpc.RpcError:
                return None

        assert wait_for(answered, what="the grant").name == TOPIC


@pytest.mark.parametrize("more", [[("authorization", "Bearer {token}")], [("x-pushhub-region", "local")] * 2])
def test_what_is_there_twice_is_refused_as_over_rest(strict: GrpcServer, more: list[tuple[str, str]]) -> None:
    create_project(project_id="shop")
    make()
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member=ADA)
    token = access_tokens.create_access_token(member=ADA).token
    twice = [(name, text.format(token=token)) for name, text in [("authorization", "Bearer {token}"), *more]]
    connection = http.client.HTTPConnection(strict.address, timeout=30)
    connection.putrequest("POST", f"/v1/{TOPIC}:publish")
    body = b'{"messages": [{"data": "eA=="}]}'
    for name, text in [*twice, ("content-type", "application/json"), ("content-length", str(len(body)))]:
        connection.putheader(name, text)
    connection.endheaders(body)
    with connection.getresponse() as response:
        error = json.load(response)["error"]
    connection.close()
    request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"x"}])
    with grpc.insecure_channel(strict.address) as channel:
        refusal = refused(channel, "google.pubsub.v1.Publisher.Publish", request, metadata=twice)
    assert (refusal.code().name, refusal.details()) == (error["status"], error["message"])


def test_changes_are_audited_with_caller_address_and_method(channel: grpc.Channel) -> None:
    call(channel, "google.pubsub.v1.Publisher.CreateTopic", pubsub.Topic.pb()(name=TOPIC), pubsub.Topic.pb())
    entry = AuditEntry.objects.get(resource=TOPIC)
    assert (entry.surface, entry.address, entry.caller) == ("grpc", "127.0.0.1", "user:developer@localhost")
    assert entry.method == "google.pubsub.v1.Publisher.CreateTopic"


def test_refused_changes_are_audited_and_refused_publishes_are_not(strict: GrpcServer) -> None:
    create_project(project_id="shop")
    make()
    token = access_tokens.create_access_token(member=ADA).token
    with grpc.insecure_channel(strict.address) as channel:
        delete = pubsub.DeleteTopicRequest.pb()(topic=TOPIC)
        refused(channel, "google.pubsub.v1.Publisher.DeleteTopic", delete, metadata=bearer(token))
        message = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"x"}])
        refused(channel, "google.pubsub.v1.Publisher.Publish", message, metadata=bearer(token))
    entry = AuditEntry.objects.get(outcome="denied")
    assert (entry.caller, entry.method) == (ADA, "google.pubsub.v1.Publisher.DeleteTopic")


def test_policies_of_resources_outside_of_pubsub(channel: grpc.Channel) -> None:
    request = iam_policy_pb2.TestIamPermissionsRequest(resource=PROJECT, permissions=["pubsub.topics.list"])
    answer = iam_policy_pb2.TestIamPermissionsResponse
    create_project(project_id="shop")
    assert list(call(channel, "google.iam.v1.IAMPolicy.TestIamPermissions", request, answer).permissions) == [
        "pubsub.topics.list"
    ]


def test_a_snapshot_without_a_name_gets_one_in_the_subscriptions_project(channel: grpc.Channel) -> None:
    make()
    request = pubsub.CreateSnapshotRequest.pb()(subscription=SUBSCRIPTION)
    snapshot = call(channel, "google.pubsub.v1.Subscriber.CreateSnapshot", request, pubsub.Snapshot.pb())
    assert re.fullmatch(r"projects/shop/snapshots/auto-[0-9a-f]{24}", snapshot.name)


def test_a_paused_subscription_has_the_fields_that_google_knows(channel: grpc.Channel) -> None:
    """REST says who paused it, in a field of PushHub's own."""
    make(pushConfig={"pushEndpoint": "https://push.example.com/"})
    pause_subscription(name=SUBSCRIPTION)
    assert subscription_described(Subscription.objects.get()).keys() > {"name", "paused"}
    request, answer = pubsub.GetSubscriptionRequest.pb()(subscription=SUBSCRIPTION), pubsub.Subscription.pb()
    shown = call(channel, "google.pubsub.v1.Subscriber.GetSubscription", request, answer)
    assert (shown.name, shown.topic) == (SUBSCRIPTION, TOPIC)


def test_a_missing_topic_is_not_found_whatever_is_published(channel: grpc.Channel) -> None:
    request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{}])
    error = refused(channel, "google.pubsub.v1.Publisher.Publish", request)
    assert error.code() is grpc.StatusCode.NOT_FOUND


def test_publishes_that_wait_to_be_committed_take_no_slot_of_their_caller(
    transactional_db: None, redis_url: str, live_server: LiveServer
) -> None:
    with (
        GrpcServer(redis_url, rest=live_server.url, PUSHHUB_GRPC_CALLER_CALLS="1") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        make()
        request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"x"}]).SerializeToString()
        # Calls reach the server in their order once the channel is connected.
        grpc.channel_ready_future(channel).result(timeout=60)
        with write_transaction():
            if connection.vendor == "postgresql":
                with connection.cursor() as cursor:
                    cursor.execute("LOCK TABLE deliveries_message IN EXCLUSIVE MODE")
            publish_method = channel.unary_unary("/google.pubsub.v1.Publisher/Publish")
            publishes = [publish_method.future(request, timeout=60) for _ in range(3)]
            topic_request = pubsub.GetTopicRequest.pb()(topic=TOPIC)
            topic = call(channel, "google.pubsub.v1.Publisher.GetTopic", topic_request, pubsub.Topic.pb())
            assert topic.name == TOPIC
            assert not any(publish.done() for publish in publishes)
        answers = [pubsub.PublishResponse.pb().FromString(publish.result()) for publish in publishes]
    assert len({answer.message_ids[0] for answer in answers}) == 3


def test_a_pull_waits_for_a_message(channel: grpc.Channel) -> None:
    make()
    stub = channel.unary_unary(
        "/google.pubsub.v1.Subscriber/Pull",
        request_serializer=pubsub.PullRequest.pb().SerializeToString,
        response_deserializer=pubsub.PullResponse.pb().FromString,
    )
    waiting = stub.future(pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=5), timeout=30)
    publish(channel, "late")
    assert [entry.message.data for entry in waiting.result(timeout=30).received_messages] == [b"late"]


def test_a_stream_acknowledges_on_itself(channel: grpc.Channel) -> None:
    make()
    publish(channel, "a", "b")
    stream = Stream(channel)
    messages = stream.messages(2)
    stream.send(ack_ids=[message.ack_id for message in messages])
    wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgements")
    stream.end()
    assert list(stream.answers) == []


def test_a_stream_holds_no_more_than_it_was_told(channel: grpc.Channel) -> None:
    make()
    publish(channel, *[str(number) for number in range(5)])
    stream = Stream(channel, max_outstanding_messages=2)
    first = stream.messages(2)
    assert len(first) == 2
    stream.send(ack_ids=[first[0].ack_id])
    assert len(stream.messages(1)) == 1
    stream.send(modify_deadline_ack_ids=[first[1].ack_id], modify_deadline_seconds=[0])
    assert len(stream.messages(1)) == 1
    stream.cancel()


def test_a_unary_acknowledgement_makes_room_on_the_stream(channel: grpc.Channel, live_server: LiveServer) -> None:
    make()
    publish(channel, "a", "b", "c")
    stream = Stream(channel, max_outstanding_messages=1)
    (first,) = stream.messages(1)
    request = pubsub.AcknowledgeRequest.pb()(subscription=SUBSCRIPTION, ack_ids=[first.ack_id])
    call(channel, "google.pubsub.v1.Subscriber.Acknowledge", request)
    (second,) = stream.messages(1)
    body = {"ackIds": [second.ack_id]}
    url = f"{live_server.url}/v1/{SUBSCRIPTION}:acknowledge"
    assert requests.post(url, json=body, timeout=30).status_code == 200, "through another process"
    (third,) = stream.messages(1)
    assert third.message.data == b"c"
    stream.cancel()


def test_bytes_outstanding_are_bounded(channel: grpc.Channel) -> None:
    make()
    publish(channel, *["x" * 1000] * 5)
    stream = Stream(channel, max_outstanding_bytes=1500)
    first = stream.messages(1)
    more = next(stream.answers).received_messages if len(first) == 1 else ()
    held = [*first, *more]
    assert len(held) == 2, "the stream sends one more message while it has any room, as production does"
    stream.send(ack_ids=[message.ack_id for message in held])
    assert stream.messages(1)
    stream.cancel()


def test_large_messages_count_with_their_true_size_from_the_first_answer_on(channel: grpc.Channel) -> None:
    make()
    publish(channel, *["x" * 60_000] * 5)
    stream = Stream(channel, max_outstanding_bytes=100_000)
    held = stream.messages(2)
    assert len(held) == 2, "the second one begins within the limit, and a third would not"
    stream.send(ack_ids=[held[0].ack_id])
    assert len(stream.messages(1)) == 1
    stream.cancel()


@pytest.mark.parametrize("end", ["cancel", "end"])
def test_a_stream_that_ends_releases_the_messages_that_its_client_never_touched(
    channel: grpc.Channel, end: str
) -> None:
    create_topic(name=DEAD_TOPIC, topic={})
    make(deadLetterPolicy={"deadLetterTopic": DEAD_TOPIC, "maxDeliveryAttempts": 5})
    publish(channel, "acknowledged", "extended", "nacked", "untouched")
    stream = Stream(channel, stream_ack_deadline_seconds=600)
    ack_ids = {entry.message.data: entry.ack_id for entry in stream.messages(4)}
    extended, nacked = ack_ids[b"extended"], ack_ids[b"nacked"]
    stream.send(
        ack_ids=[ack_ids[b"acknowledged"]],
        modify_deadline_ack_ids=[extended, nacked],
        modify_deadline_seconds=[600, 0],
    )
    [again] = stream.messages(1)
    assert (again.message.data, again.delivery_attempt) == (b"nacked", 2)
    getattr(stream, end)()
    next_stream = Stream(channel, stream_ack_deadline_seconds=600)
    received = {entry.message.data: entry.delivery_attempt for entry in next_stream.messages(2)}
    assert received == {b"untouched": 1, b"nacked": 2}
    next_stream.cancel()


def test_a_message_that_was_extended_by_a_unary_call_outlasts_its_stream(channel: grpc.Channel) -> None:
    make()
    publish(channel, "mine", "untouched")
    stream = Stream(channel, stream_ack_deadline_seconds=600)
    ack_ids = {entry.message.data: entry.ack_id for entry in stream.messages(2)}
    request = pubsub.ModifyAckDeadlineRequest.pb()
    call(
        channel,
        "google.pubsub.v1.Subscriber.ModifyAckDeadline",
        request(subscription=SUBSCRIPTION, ack_ids=[ack_ids[b"mine"]], ack_deadline_seconds=600),
    )
    stream.cancel()
    next_stream = Stream(channel, stream_ack_deadline_seconds=600)
    assert [entry.message.data for entry in next_stream.messages(1)] == [b"untouched"]
    acknowledge = pubsub.AcknowledgeRequest.pb()(subscription=SUBSCRIPTION, ack_ids=[ack_ids[b"mine"]])
    call(channel, "google.pubsub.v1.Subscriber.Acknowledge", acknowledge)
    assert Delivery.objects.count() == 1
    next_stream.cancel()


@pytest.mark.parametrize(
    ("first", "code", "words"),
    [
        ({"subscription": ""}, "INVALID_ARGUMENT", "subscription"),
        ({"subscription": "nonsense"}, "INVALID_ARGUMENT", "Invalid resource name given"),
        ({"subscription": f"{PROJECT}/subscriptions/missing"}, "NOT_FOUND", "missing"),
        ({"stream_ack_deadline_seconds": 0}, "INVALID_ARGUMENT", "Invalid ack deadline given (ack_deadline=0)"),
        ({"stream_ack_deadline_seconds": 9}, "INVALID_ARGUMENT", "between 10 and 600"),
        ({"stream_ack_deadline_seconds": 601}, "INVALID_ARGUMENT", "between 10 and 600"),
        ({"ack_ids": ["nonsense"]}, "INVALID_ARGUMENT", "invalid ack ID"),
        ({"modify_deadline_ack_ids": ["x"]}, "INVALID_ARGUMENT", "modify_deadline_ack_ids"),
    ],
)
def test_a_stream_that_begins_badly_is_refused(
    channel: grpc.Channel, first: dict[str, Any], code: str, words: str
) -> None:
    make()
    refusal = Stream(channel, **first).refusal()
    assert refusal[0] == code
    assert words in refusal[1]


@pytest.mark.parametrize(
    ("later", "words"),
    [
        ({"subscription": SUBSCRIPTION}, "subscription"),
        ({"max_outstanding_messages": 5}, "max_outstanding_messages"),
        ({"max_outstanding_bytes": 5}, "max_outstanding_bytes"),
        ({"protocol_version": 1}, "protocol_version"),
        ({"stream_ack_deadline_seconds": 5}, "Invalid ack deadline given"),
        ({"ack_ids": ["nonsense"]}, "invalid ack ID"),
        ({"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [1, 2]}, "modify_deadline_ack_ids"),
    ],
)
def test_a_stream_that_misbehaves_is_closed_with_a_status(
    channel: grpc.Channel, later: dict[str, Any], words: str
) -> None:
    make()
    stream = Stream(channel)
    stream.send(**later)
    code, details = stream.refusal()
    assert code == "INVALID_ARGUMENT"
    assert words in details


def test_a_client_may_repeat_its_id(channel: grpc.Channel) -> None:
    make()
    publish(channel, "x")
    stream = Stream(channel, client_id="app")
    [received] = stream.messages(1)
    stream.send(client_id="app", ack_ids=[received.ack_id])
    wait_for(lambda: not Delivery.objects.exists(), what="the acknowledgement")
    stream.cancel()


def test_a_subscription_that_begins_to_push_ends_its_streams(channel: grpc.Channel) -> None:
    make()
    stream = Stream(channel)
    config = {"pushConfig": {"pushEndpoint": "https://example.com/push"}}
    modify_push_config(name=SUBSCRIPTION, request=config)
    assert stream.refusal()[0] == "FAILED_PRECONDITION"


def test_a_server_that_stops_ends_its_streams_as_unavailable(
    transactional_db: None, redis_url: str, live_server: LiveServer
) -> None:
    make()
    with (
        GrpcServer(redis_url, rest=live_server.url) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        publish(channel, "before")
        stream = Stream(channel)
        stream.messages(1)
        server.process.terminate()
        assert stream.refusal()[0] == "UNAVAILABLE"
        assert server.process.wait(timeout=30) == 0


def test_a_server_that_stops_gives_back_what_its_clients_never_touched(
    transactional_db: None, redis_url: str, live_server: LiveServer
) -> None:
    """Given streams that end together, and that have to wait for each other until they can give anything back."""
    create_topic(name=DEAD_TOPIC, topic={})
    make(deadLetterPolicy={"deadLetterTopic": DEAD_TOPIC, "maxDeliveryAttempts": 5})
    slow = """
import time
from deliveries.rpc import streaming
from deliveries.rules.payload import NewMessage
give_back = streaming._given_back
streaming._given_back = lambda *of: (time.sleep(0.5), give_back(*of))
"""
    with (
        GrpcServer(redis_url, rest=live_server.url, first=slow, PUSHHUB_GRPC_CALLER_CALLS="1") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        ids = publish(channel, "a", "b", "c")
        streams = [Stream(channel, stream_ack_deadline_seconds=600, max_outstanding_messages=1) for _ in ids]
        for stream in streams:
            stream.messages(1)
        server.process.terminate()
        assert {stream.refusal()[0] for stream in streams} == {"UNAVAILABLE"}
        assert server.process.wait(timeout=30) == 0
    received = pull_messages(subscription=Subscription.objects.get(), max_messages=10)
    assert {entry.message["messageId"]: entry.delivery_attempt for entry in received} == dict.fromkeys(ids, 1)


def test_a_pull_that_its_caller_cancels_gives_back_what_it_leases(
    transactional_db: None, redis_url: str, live_server: LiveServer
) -> None:
    create_topic(name=DEAD_TOPIC, topic={})
    make(ackDeadlineSeconds=600, deadLetterPolicy={"deadLetterTopic": DEAD_TOPIC, "maxDeliveryAttempts": 5})
    slow = """
import time
from deliveries.pull import leasing
pull_messages = leasing.pull_messages
leasing.pull_messages = lambda **of: [received := pull_messages(**of), time.sleep(0.5)][0]
"""
    with (
        GrpcServer(redis_url, rest=live_server.url, first=slow) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        [message_id] = publish(channel, "x")
        request = pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=1).SerializeToString()
        pull = channel.unary_unary("/google.pubsub.v1.Subscriber/Pull").future(request)
        lane = Lane(Subscription.objects.get().pk, "local")
        wait_for(lambda: default_backlog().client.zcard(f"{lane.root}:l"), what="the lease")
        pull.cancel()
        [received] = wait_for(lambda: pull_messages(subscription=Subscription.objects.get(), max_messages=1), what="it")
    assert (received.message["messageId"], received.delivery_attempt) == (message_id, 1)


def test_a_pull_fits_into_what_clients_take_by_default(channel: grpc.Channel) -> None:
    """Google's client for Python takes up to 4 MB from what PUBSUB_EMULATOR_HOST names."""
    make()
    for _ in range(5):
        publish(channel, "x" * 1_000_000)
    request = pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=5)
    ids: set[str] = set()
    while len(ids) < 5:
        answer = call(channel, "google.pubsub.v1.Subscriber.Pull", request, pubsub.PullResponse.pb())
        ids.update(received.message.message_id for received in answer.received_messages)


def test_a_stream_ends_when_another_subscription_gets_the_name_of_its_own(
    redis_url: str, live_server: LiveServer
) -> None:
    make()
    idle = "from deliveries.rpc import streaming; streaming.AUTHORIZE_SECONDS = 0.01"
    with (
        GrpcServer(redis_url, rest=live_server.url, first=idle) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        publish(channel, "before")
        stream = Stream(channel)
        stream.messages(1)
        with transaction.atomic():
            delete_subscription(name=SUBSCRIPTION)
            create_subscription(name=SUBSCRIPTION, subscription={"topic": TOPIC})
        assert stream.refusal()[0] == "NOT_FOUND"


def test_a_lease_that_another_process_extends_takes_room_on_its_stream(redis_url: str, live_server: LiveServer) -> None:
    make()
    least = "from deliveries.rpc import streaming; streaming.LEAST_DEADLINE_SECONDS = 1"
    with (
        GrpcServer(redis_url, rest=live_server.url, first=least) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        publish(channel, "held", "next")
        stream = Stream(channel, max_outstanding_messages=1, stream_ack_deadline_seconds=1)
        [held] = stream.messages(1)
        modify_ack_deadlines(subscription=Subscription.objects.get(), ack_ids=[held.ack_id], seconds=600)
        until = default_backlog().client.time()[0] + 4
        wait_for(lambda: default_backlog().client.time()[0] > until, what="the time after which the lease had lapsed")
        lane = Lane(Subscription.objects.get().pk, "local")
        assert default_backlog().client.zcard(f"{lane.root}:l") == 1
        acknowledge_messages(subscription=Subscription.objects.get(), ack_ids=[held.ack_id])
        [following] = stream.messages(1)
        assert following.message.data == b"next"
        stream.cancel()


def test_a_revoked_token_ends_its_stream(strict: GrpcServer) -> None:
    create_project(project_id="shop")
    make()
    grants.grant_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=ADA)
    issued = access_tokens.create_access_token(member=ADA)
    with grpc.insecure_channel(strict.address) as channel:
        stub = channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=StreamingPullRequest.SerializeToString,
            response_deserializer=pubsub.StreamingPullResponse.pb().FromString,
        )
        requests_: queue.Queue[Any] = queue.Queue()
        requests_.put(StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10))
        answers = stub(iter(requests_.get, None), timeout=60, metadata=bearer(issued.token))
        message = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"x"}])
        grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member=ADA)

        def published() -> bool:
            try:
                call(channel, "google.pubsub.v1.Publisher.Publish", message, metadata=bearer(issued.token))
            except grpc.RpcError:
                return False
            return True

        wait_for(published, what="the grant")
        assert next(answers).received_messages
        access_tokens.revoke_access_tokens(ids=[issued.row.pk])
        with pytest.raises(grpc.RpcError) as caught:
            list(answers)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        requests_.put(None)


def test_a_pull_that_waits_ends_with_the_right_to_pull(strict: GrpcServer) -> None:
    create_project(project_id="shop")
    make()
    grants.grant_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=ADA)
    token = access_tokens.create_access_token(member=ADA).token
    with grpc.insecure_channel(strict.address) as channel:
        stub = channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull",
            request_serializer=pubsub.PullRequest.pb().SerializeToString,
            response_deserializer=pubsub.PullResponse.pb().FromString,
        )
        look = pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=5, return_immediately=True)
        stub(look, metadata=bearer(token), timeout=30)
        waiting = stub.future(
            pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=5), metadata=bearer(token), timeout=30
        )
        with pytest.raises(grpc.FutureTimeoutError):
            waiting.result(timeout=0.5)
        grants.revoke_role(get_resource(SUBSCRIPTION), role="roles/pubsub.subscriber", member=ADA)

        def is_refused() -> bool:
            try:
                stub(look, metadata=bearer(token), timeout=30)
            except grpc.RpcError:
                return True
            return False

        wait_for(is_refused, what="the end of the right")
        publish_message(topic=get_topic(name=TOPIC), messages=[NewMessage(b"late", {})])
        with pytest.raises(grpc.RpcError) as caught:
            waiting.result(timeout=30)
        assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_compressed_requests_are_read(channel: grpc.Channel) -> None:
    make()

    for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
        request = pubsub.PublishRequest.pb()(topic=TOPIC, messages=[{"data": b"a" * 100_000}])
        answer = call(
            channel, "google.pubsub.v1.Publisher.Publish", request, pubsub.PublishResponse.pb(), compression=compression
        )
        assert len(answer.message_ids) == 1

    pulled = call(
        channel,
        "google.pubsub.v1.Subscriber.Pull",
        pubsub.PullRequest.pb()(subscription=SUBSCRIPTION, max_messages=2),
        pubsub.PullResponse.pb(),
        compression=grpc.Compression.Gzip,
    )
    assert [entry.message.data for entry in pulled.received_messages] == [b"a" * 100_000] * 2


def test_a_keep_alive_ping_is_answered(server: GrpcServer) -> None:
    """The test writes the frames itself, because gRPC's own clients wait ten seconds before they ping."""
    host, _, port = server.address.partition(":")
    settings_frame, ping = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x08\x06%s\0\0\0\0are here"

    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings_frame + ping % b"\0")
        received = b""
        while ping % b"\x01" not in received:
            data = connection.recv(4096)
            assert data, "the server closed the connection"
            received += data


def test_leases_that_cannot_be_released_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given that Redis is away when a stream ends, then a warning says that its leases lapse."""

    def fail(**_: object) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(streaming, "give_back_leases", fail)
    streaming._given_back(Subscription(), {"one": 1, "two": 2}, "puller")
    assert "2 leases and the keys of a stream that ended lapse" in caplog.text
