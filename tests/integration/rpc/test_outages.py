"""Whatever call to the database or Redis fails, each method of gRPC ends with UNAVAILABLE, or as if nothing had failed.

The methods run in the test's own thread, where the calls are discovered (tests/integration/api/test_outages.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import redis
from google.protobuf.json_format import ParseDict

from deliveries.publish.service import publish_message
from deliveries.pull.leasing import pull_messages
from deliveries.retention import snapshots
from deliveries.rpc import streaming, streams
from deliveries.rules.payload import NewMessage
from pushhub.common.outages import outage_of
from pushhub.runtime.grpcserver import services
from subscriptions.iam import access
from subscriptions.rpc import calls
from subscriptions.rpc.calls import service_handler
from subscriptions.selectors import get_topic, read_subscription
from subscriptions.services import schemas
from subscriptions.services.projects import create_project
from subscriptions.services.subscriptions import create_subscription, update_subscription
from subscriptions.services.topics import create_topic
from tests.faults import Faults, outage_errors
from tests.integration.api.test_outages import only_outages

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

SHOP = "projects/shop"
ORDERS, PULLED, PUSHED = f"{SHOP}/topics/orders", f"{SHOP}/subscriptions/pulled", f"{SHOP}/subscriptions/pushed"
KEPT, GOODS = f"{SHOP}/snapshots/kept", f"{SHOP}/schemas/goods"
PUSH = {"topic": ORDERS, "pushConfig": {"pushEndpoint": "https://127.0.0.1/push"}}
AVRO = {"type": "AVRO", "definition": '{"type": "record", "name": "R", "fields": []}'}
LABELS = {"labels": {"n": "{n}"}}
#: The request of each method in proto JSON. `{n}` is another number in each; ACKID stands for a lease, and REVISION for
#: a revision of the schema `new{n}`.
REQUESTS: dict[str, dict[str, Any]] = {
    "CreateTopic": {"name": f"{SHOP}/topics/made{{n}}"},
    "UpdateTopic": {"topic": {"name": ORDERS, **LABELS}, "updateMask": "labels"},
    "GetTopic": {"topic": ORDERS},
    "ListTopics": {"project": SHOP},
    "DeleteTopic": {"topic": f"{SHOP}/topics/new{{n}}"},
    "ListTopicSubscriptions": {"topic": ORDERS},
    "ListTopicSnapshots": {"topic": ORDERS},
    "DetachSubscription": {"subscription": f"{SHOP}/subscriptions/new{{n}}"},
    "Publish": {"topic": ORDERS, "messages": [{"data": "eA=="}]},
    "CreateSubscription": {"name": f"{SHOP}/subscriptions/made{{n}}", **PUSH},
    "GetSubscription": {"subscription": PUSHED},
    "UpdateSubscription": {"subscription": {"name": PUSHED, **LABELS}, "updateMask": "labels"},
    "ListSubscriptions": {"project": SHOP},
    "DeleteSubscription": {"subscription": f"{SHOP}/subscriptions/new{{n}}"},
    "ModifyPushConfig": {"subscription": PUSHED, "pushConfig": PUSH["pushConfig"]},
    "Pull": {"subscription": PULLED, "maxMessages": 1},
    "Acknowledge": {"subscription": PULLED, "ackIds": ["ACKID"]},
    "ModifyAckDeadline": {"subscription": PULLED, "ackIds": ["ACKID"], "ackDeadlineSeconds": 20},
    "CreateSnapshot": {"name": f"{SHOP}/snapshots/made{{n}}", "subscription": PULLED},
    "GetSnapshot": {"snapshot": KEPT},
    "UpdateSnapshot": {"snapshot": {"name": KEPT, **LABELS}, "updateMask": "labels"},
    "DeleteSnapshot": {"snapshot": f"{SHOP}/snapshots/new{{n}}"},
    "ListSnapshots": {"project": SHOP},
    "Seek": {"subscription": PULLED, "time": "2026-01-01T00:00:00Z"},
    "CreateSchema": {"parent": SHOP, "schema": AVRO, "schemaId": "made{n}"},
    "GetSchema": {"name": GOODS},
    "ListSchemas": {"parent": SHOP},
    "ListSchemaRevisions": {"name": GOODS},
    "CommitSchema": {"name": f"{SHOP}/schemas/new{{n}}", "schema": {"name": f"{SHOP}/schemas/new{{n}}", **AVRO}},
    "RollbackSchema": {"name": f"{SHOP}/schemas/new{{n}}", "revisionId": "REVISION"},
    "DeleteSchemaRevision": {"name": f"{SHOP}/schemas/new{{n}}@REVISION"},
    "DeleteSchema": {"name": f"{SHOP}/schemas/new{{n}}"},
    "ValidateSchema": {"parent": SHOP, "schema": AVRO},
    "ValidateMessage": {"parent": SHOP, "name": GOODS, "message": "e30=", "encoding": "JSON"},
    "SetIamPolicy": {"resource": ORDERS, "policy": {}},
    "GetIamPolicy": {"resource": ORDERS},
    "TestIamPermissions": {"resource": ORDERS, "permissions": ["pubsub.topics.get"]},
}


class Ended(Exception):
    """A call was ended with a status."""


class Context:
    """What a handler needs of a call."""

    def __init__(self, requests: AsyncIterator[bytes]) -> None:
        self._requests = requests

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> float:
        return 5.0

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> bytes:
        return await anext(self._requests)

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        assert details
        raise Ended(code.name)


class InThisThread:
    """Stands in for the threads of a server."""

    def submit(self, tenant: str, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future


class Server:
    """The handlers, called one at a time."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._handlers: dict[str, Any] = {}
        #: The responses on the last stream.
        self.answers: list[Any] = []
        for service, methods in services().items():
            handler = service_handler(service, methods)
            for name in methods:
                self._handlers[name] = handler.service(SimpleNamespace(method=f"/{service}/{name}"))

    def close(self) -> None:
        self._runner.close()

    def call(self, method: str, request: bytes) -> str:
        """Return the status of a call with one request."""

        async def requests() -> AsyncIterator[bytes]:
            yield request

        async def call() -> None:
            await self._handlers[method].stream_unary(None, Context(requests()))

        return self._status_of(call())

    def stream(self, first: bytes) -> str:
        """Return the status of a stream that acknowledges its first message and then ends."""

        async def call() -> None:
            acks: asyncio.Queue[list[str]] = asyncio.Queue()

            async def requests() -> AsyncIterator[bytes]:
                yield first
                yield streaming.Request(ack_ids=await acks.get()).SerializeToString()

            self.answers.clear()
            handler = self._handlers["StreamingPull"].stream_stream
            async for answer in handler(requests(), Context(requests())):
                self.answers.append(streaming.Response.FromString(answer))
                received = self.answers[-1].received_messages
                if received:
                    acks.put_nowait([message.ack_id for message in received])
            await asyncio.gather(*streams._endings)

        return self._status_of(call())

    def _status_of(self, call: Any) -> str:
        try:
            self._runner.run(call)
        except Ended as ended:
            return str(ended)
        return "OK"


@pytest.fixture
def server(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(calls, "threads_of", lambda _: InThisThread())
    monkeypatch.setattr(streaming, "GRACE_SECONDS", 0.0)
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    create_project(project_id="shop")
    create_topic(name=ORDERS, topic={})
    create_subscription(name=PULLED, subscription={"topic": ORDERS})
    create_subscription(name=PUSHED, subscription=PUSH)
    snapshots.create_snapshot(name=KEPT, request={"subscription": PULLED})
    schemas.create_schema(parent=SHOP, schema_id="goods", schema=AVRO)
    server = Server()
    yield server
    server.close()


def prepared(method: str, number: int) -> bytes:
    """Return the request, after what it needs was made."""
    text = str(REQUESTS[method])
    name = f"new{number}"
    if f"{SHOP}/topics/new" in text:
        create_topic(name=f"{SHOP}/topics/{name}", topic={})
    if f"{SHOP}/subscriptions/new" in text:
        create_subscription(name=f"{SHOP}/subscriptions/{name}", subscription=PUSH)
    if f"{SHOP}/snapshots/new" in text:
        snapshots.create_snapshot(name=f"{SHOP}/snapshots/{name}", request={"subscription": PULLED})
    values = {"{n}": str(number)}
    if f"{SHOP}/schemas/new" in text:
        values["REVISION"] = schemas.create_schema(parent=SHOP, schema_id=name, schema=AVRO).revision_id
        schemas.commit_schema(name=f"{SHOP}/schemas/{name}", request={"schema": AVRO})
    if method in ("Pull", "Acknowledge", "ModifyAckDeadline"):
        publish()
    if "ACKID" in text:
        [received] = pull_messages(subscription=read_subscription(name=PULLED), max_messages=1)
        values["ACKID"] = received.ack_id
    return encoded(method, REQUESTS[method], values)


def publish() -> None:
    publish_message(topic=get_topic(name=ORDERS), messages=[NewMessage(b"x", {})])


def encoded(method: str, request: dict[str, Any], values: dict[str, str]) -> bytes:
    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner) for inner in value]
        for word, text in values.items() if isinstance(value, str) else ():
            value = value.replace(word, text)
        return value

    kind = next(methods[method].request for methods in services().values() if method in methods)
    return bytes(ParseDict(filled(request), kind()).SerializeToString())


@pytest.mark.parametrize("method", REQUESTS)
def test_a_call_that_fails_makes_the_method_unavailable_at_most(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    faults = Faults(monkeypatch)
    for number in (1, 2):  # the first one fills caches
        request = prepared(method, number)
        access.forget_decisions()
        with faults.at():
            assert server.call(method, request) == "OK"
    caplog.clear()
    for number in range(len(faults.owners)):
        request = prepared(method, 3 + number)
        access.forget_decisions()
        with faults.at(number, **outage_errors(number)):
            status = server.call(method, request)
        assert status in ("OK", "UNAVAILABLE"), (number, faults.owners)
        assert only_outages(caplog)


def test_each_method_is_tried() -> None:
    assert REQUESTS.keys() | {"StreamingPull"} == {name for methods in services().values() for name in methods}


def test_a_call_that_fails_ends_a_stream_with_unavailable_at_most(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = encoded("StreamingPull", {"subscription": PULLED, "streamAckDeadlineSeconds": 10}, {})
    faults = Faults(monkeypatch)
    for _ in range(2):
        publish()
        with faults.at():
            assert server.stream(first) == "OK"
    assert len(faults.owners) > 10
    for number in range(len(faults.owners)):
        publish()
        with faults.at(number, **outage_errors(number)):
            assert server.stream(first) in ("OK", "UNAVAILABLE"), (number, faults.owners)
        assert only_outages(caplog)


def test_a_client_that_sends_no_more_gets_the_confirmation_of_its_last_request(server: Server) -> None:
    request = {"subscription": {"enableExactlyOnceDelivery": True}, "updateMask": "enableExactlyOnceDelivery"}
    update_subscription(name=PULLED, request=request)
    publish()
    first = encoded("StreamingPull", {"subscription": PULLED, "streamAckDeadlineSeconds": 10}, {})
    assert server.stream(first) == "OK"
    [received] = server.answers[0].received_messages
    assert list(server.answers[-1].acknowledge_confirmation.ack_ids) == [received.ack_id]


def test_an_error_of_pushhub_is_internal_with_a_traceback(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(monkeypatch)
    for number in (1, 2, 3):
        request = prepared("Pull", number)
        with faults.at():
            assert server.call("Pull", request) == "OK"
    first = faults.owners.index("Redis")
    publish()
    caplog.clear()

    with faults.at(first, Redis=redis.ResponseError("WRONGTYPE Operation against a key")):
        assert server.call("Pull", request) == "INTERNAL"

    errors = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert errors and not any(map(outage_of, errors))
