"""gRPC requests that are cheap to send and expensive to read: small when compressed, then large or many objects."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest
from google.pubsub_v1.types import pubsub
from pytest_django.live_server_helper import LiveServer

from pushhub.common.errors import InvalidArgument
from pushhub.common.wire import MOST_FIELDS, check_fields
from subscriptions.iam import grants
from subscriptions.iam.tree import get_resource
from subscriptions.identity import access_tokens
from subscriptions.rpc.public import ADDRESS_STREAMS
from subscriptions.services.projects import create_project
from subscriptions.services.topics import create_topic
from tests.grpcservers import GrpcServer
from tests.ports import wait_for

pytestmark = pytest.mark.any_database

PUBLISH = "/google.pubsub.v1.Publisher/Publish"
STREAM = "/google.pubsub.v1.Subscriber/StreamingPull"
#: 5.5 million empty messages, 11 KB once compressed.
EMPTY_MESSAGES = b"\x12\x00" * 5_500_000
ADA = "user:ada@example.com"
TOPIC = "projects/shop/topics/orders"
PublishRequest = pubsub.PublishRequest.pb()


@pytest.fixture
def strict(transactional_db: None, redis_url: str, live_server: LiveServer) -> Iterator[GrpcServer]:
    """Start a server that refuses callers without a token."""
    with GrpcServer(redis_url, rest=live_server.url, PUSHHUB_ANONYMOUS="", PUSHHUB_DEVELOPMENT="0") as started:
        yield started


@pytest.fixture
def channel(strict: GrpcServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(strict.address, compression=grpc.Compression.Gzip) as channel:
        yield channel


@pytest.fixture
def publisher() -> tuple[tuple[str, str], ...]:
    """Return the call metadata of a caller who may publish to the topic."""
    create_project(project_id="shop")
    create_topic(name=TOPIC, topic={})
    grants.grant_role(get_resource(TOPIC), role="roles/pubsub.publisher", member=ADA)
    return (("authorization", f"Bearer {access_tokens.create_access_token(member=ADA).token}"),)


def peak_mb(server: GrpcServer) -> float:
    """Return the most memory that the process ever held, in MB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def code_of(call: Callable[..., object], *arguments: object, **options: object) -> str:
    try:
        call(*arguments, timeout=60, **options)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer nonsense"),)], ids=["nobody", "a bad token"])
def test_the_request_of_a_stranger_is_never_read(
    strict: GrpcServer, channel: grpc.Channel, metadata: tuple[tuple[str, str], ...]
) -> None:
    publish = channel.unary_unary(PUBLISH)
    assert code_of(publish, b"", metadata=metadata) == "UNAUTHENTICATED"
    before = peak_mb(strict)
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda _: code_of(publish, EMPTY_MESSAGES, metadata=metadata), range(8)))
    assert set(codes) == {"UNAUTHENTICATED"}
    assert peak_mb(strict) - before < 30


@contextmanager
def silent_requests() -> Iterator[Callable[[], Iterator[bytes]]]:
    """Yield what makes the requests of a client that sends nothing during the block."""
    ended = threading.Event()

    def requests() -> Iterator[bytes]:
        ended.wait()
        yield from ()

    try:
        yield requests
    finally:
        ended.set()


def test_a_stranger_is_refused_before_the_request_is_complete(channel: grpc.Channel) -> None:
    with silent_requests() as requests:
        for method in (PUBLISH, STREAM):
            answers = channel.stream_stream(method)(requests(), timeout=60)
            assert answers.code() == grpc.StatusCode.UNAUTHENTICATED


def test_a_known_caller_cannot_make_millions_of_objects(
    strict: GrpcServer, channel: grpc.Channel, publisher: tuple[tuple[str, str], ...]
) -> None:
    publish = channel.unary_unary(PUBLISH)
    large = PublishRequest(topic=TOPIC, messages=[{"data": b"x" * 9_000_000}]).SerializeToString()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: code_of(publish, large, metadata=publisher), range(8))) == {"OK"}
        before = peak_mb(strict)
        codes = list(pool.map(lambda _: code_of(publish, EMPTY_MESSAGES, metadata=publisher), range(16)))
    assert set(codes) == {"INVALID_ARGUMENT"}
    assert peak_mb(strict) - before < 200, "each took 550 MB before"


def test_a_request_that_would_inflate_beyond_the_limit_is_not_inflated(
    strict: GrpcServer, channel: grpc.Channel, publisher: tuple[tuple[str, str], ...]
) -> None:
    publish = channel.unary_unary(PUBLISH)
    assert code_of(publish, b"", metadata=publisher) == "INVALID_ARGUMENT"
    before = peak_mb(strict)
    assert code_of(publish, bytes(300_000_000), metadata=publisher) == "RESOURCE_EXHAUSTED"
    assert peak_mb(strict) - before < 60


def test_only_requests_that_hold_messages_may_be_large(
    channel: grpc.Channel, publisher: tuple[tuple[str, str], ...]
) -> None:
    large = pubsub.GetTopicRequest.pb()(topic="x" * 2_000_000).SerializeToString()
    get_topic = channel.unary_unary("/google.pubsub.v1.Publisher/GetTopic")
    assert code_of(get_topic, large, metadata=publisher) == "INVALID_ARGUMENT"
    ack_ids = pubsub.StreamingPullRequest.pb()(ack_ids=["x" * 100] * 20_000).SerializeToString()
    streaming_pull = channel.stream_stream(STREAM)(iter([ack_ids]), timeout=60, metadata=publisher)
    assert streaming_pull.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "method",
    ["grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch", "grpc.reflection.v1alpha.ServerReflection/"],
)
def test_services_for_everybody_read_small_requests_only(channel: grpc.Channel, method: str) -> None:
    name = f"/{method}ServerReflectionInfo" if method.endswith("/") else f"/{method}"
    call = channel.stream_stream(name)(iter([b"\x0a\x80\x80\x04" + b"x" * 65536]), timeout=60)
    assert call.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [
        ("/grpc.health.v1.Health/Watch", b""),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\x3a\x00"),
    ],
)
def test_streams_that_need_no_credentials_are_bounded_by_address(
    strict: GrpcServer, method: str, request_bytes: bytes
) -> None:
    """Given as many of them as a connection has, a further one waits for the end of one of these."""
    never = threading.Event()

    def requests() -> Iterator[bytes]:
        yield request_bytes
        never.wait()

    with ExitStack() as stack:
        stack.callback(never.set)
        first, second = (
            stack.enter_context(grpc.insecure_channel(strict.address, options=[("grpc.use_local_subchannel_pool", 1)]))
            for _ in range(2)
        )

        def opened(channel: grpc.Channel) -> grpc.Call:
            if "Watch" in method:
                return channel.unary_stream(method)(request_bytes, timeout=60)
            return channel.stream_stream(method)(requests(), timeout=60)

        streams = [opened(first) for _ in range(ADDRESS_STREAMS)]
        for stream in streams:
            next(stream)
        refused = opened(second)
        assert (refused.code(), refused.details()) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "Too many calls at once: wait for some to be answered.",
        )
        streams[0].cancel()

        def is_answered() -> bool:
            try:
                return bool(next(opened(second)))
            except grpc.RpcError:
                return False

        wait_for(is_answered, what="the end of a stream to make room")


def test_calls_without_a_request_cost_their_caller_alone(strict: GrpcServer) -> None:
    """While a caller has more open calls than allowed, others are answered, and the caller is once its calls end."""
    create_project(project_id="shop")
    create_topic(name=TOPIC, topic={})
    tokens = []
    for member in (ADA, "user:bob@example.com"):
        grants.grant_role(get_resource(TOPIC), role="roles/pubsub.viewer", member=member)
        tokens.append(access_tokens.create_access_token(member=member).token)
    ada, bob = [(("authorization", f"Bearer {token}"),) for token in tokens]
    request = pubsub.GetTopicRequest.pb()(topic=TOPIC).SerializeToString()
    method = "/google.pubsub.v1.Publisher/GetTopic"
    with grpc.insecure_channel(strict.address) as channel, silent_requests() as requests:
        hanging = [channel.stream_unary(method).future(requests(), metadata=ada) for _ in range(40)]
        try:
            for _ in range(5):
                assert code_of(channel.unary_unary(method), request, metadata=bob) == "OK"
        finally:
            for call in hanging:
                call.cancel()
        assert code_of(channel.unary_unary(method), request, metadata=ada) == "OK"


@pytest.mark.parametrize("count", [1, 3])
def test_a_request_that_does_not_come_in_time_is_given_up(
    transactional_db: None, redis_url: str, live_server: LiveServer, count: int
) -> None:
    limits = {"PUSHHUB_BODY_SECONDS": "1", "PUSHHUB_GRPC_CALLER_CALLS": "1"}
    with (
        GrpcServer(redis_url, rest=live_server.url, **limits) as server,
        grpc.insecure_channel(server.address) as channel,
        silent_requests() as requests,
    ):
        publish = channel.stream_unary(PUBLISH)
        calls = [publish.future(requests(), timeout=60) for _ in range(count)]
        assert {call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}


@pytest.mark.parametrize("method", [STREAM, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"])
def test_streams_without_a_first_request_end(
    transactional_db: None, redis_url: str, live_server: LiveServer, method: str
) -> None:
    """Given 200 streams whose clients send nothing, then each of them ends, and says why."""
    with (
        GrpcServer(redis_url, rest=live_server.url, PUSHHUB_HEAD_SECONDS="1") as server,
        grpc.insecure_channel(server.address) as channel,
        silent_requests() as requests,
    ):
        streams = [channel.stream_stream(method)(requests(), timeout=60) for _ in range(200)]
        ends = {(stream.code(), stream.details()) for stream in streams}
    assert ends == {(grpc.StatusCode.DEADLINE_EXCEEDED, "The first request of the stream did not arrive in time.")}


def test_fields_are_counted_at_every_depth() -> None:
    kind = PublishRequest
    check_fields(kind, EMPTY_MESSAGES[: 2 * MOST_FIELDS])
    inside = b"\x12\x00" * MOST_FIELDS
    small = PublishRequest(messages=[{"attributes": {str(number): "" for number in range(150)}}] * 6000)
    packed = pubsub.StreamingPullRequest.pb()(modify_deadline_seconds=[1] * (3 * MOST_FIELDS))
    for request, data in (
        (kind, EMPTY_MESSAGES[: 2 * MOST_FIELDS + 2]),
        (kind, b"\x12\xe0\xb6\x0d" + inside + b"\x12\x00"),
        (kind, small.SerializeToString()),
        (pubsub.StreamingPullRequest.pb(), packed.SerializeToString()),
    ):
        with pytest.raises(InvalidArgument):
            check_fields(request, data)


def test_the_largest_publish_requests_have_few_enough_fields() -> None:
    attributes = {f"{number:03}" + "k" * 20: "v" * 60 for number in range(100)}
    for messages in ([{"attributes": attributes}] * 1000, [{"data": b"x" * 9900}] * 1000, [{"data": b"x" * 10**7}]):
        check_fields(PublishRequest, PublishRequest(messages=messages).SerializeToString())


def test_truncated_bytes_are_left_to_the_parser() -> None:
    data = PublishRequest(messages=[{"data": b"x" * 1_000_000}]).SerializeToString()
    for end in (len(data) - 1, 300_000):
        check_fields(PublishRequest, data[:end])
    check_fields(PublishRequest, b"\xff" * 300_000)
