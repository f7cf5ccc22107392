"""The same publish requests, good and bad, by each way in: the answers are the same.

The ways are REST without Django and with it, gRPC, and the form of the console.
"""

from __future__ import annotations

import base64
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import orjson
import pytest
from django.test import Client
from google.protobuf.message import Message as ProtobufMessage
from google.pubsub_v1.types import pubsub

from subscriptions.iam import grants
from subscriptions.identity.access_tokens import create_access_token
from subscriptions.models import Topic
from tests.grpcservers import GrpcServer
from tests.integration.publish.directapi import DirectApi, direct_api
from tests.restapi import root_client

pytestmark = pytest.mark.django_db(transaction=True)

REQUESTS = 500
REGIONS = ["local", "far"]
#: Each value is sent in JSON, and over gRPC too if it can be said there.
DATA: list[Any] = [
    b"hello",
    b"",
    "grüße 店".encode(),
    b"\x00\xff\xfe",
    b'{"n": 1}',
    b"drop",
    b"fail",
    5,
    None,
    "a",
    "%%",
]
ATTRIBUTES: list[Any] = [
    {},
    {"a": "1"},
    {"kind": "a", "é": "店"},
    {"googclient_x": "1"},
    {"goog": "1"},
    {"": "1"},
    {"k" * 256: "v" * 1024},
    {"k" * 257: "v"},
    {"k": "v" * 1025},
    {str(number): "v" for number in range(101)},
    {"a": 1},
    ["a"],
    None,
]
KEYS: list[Any] = ["", "", "", "k", "other", "é" * 513, "k" * 1025, 7]
TOPICS = ["orders", "orders", "orders", "filtered", "checked", "shaped", "strict", "strict", "missing", "x"]
EXTRA: list[dict[str, Any]] = [{}, {}, {}, {"messageId": "1"}, {"publishTime": "never"}, {"unknown": 1}]
BODIES: list[Any] = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"messages": {}}',
    b'{"messages": [1]}',
    b'{"topic": "x", "messages": []}',
]


@dataclass(frozen=True)
class Case:
    """A publish request: its messages, or a body that has none."""

    topic: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    body: bytes | None = None
    region: str = ""
    authorization: str = ""

    @property
    def json(self) -> bytes:
        if self.body is not None:
            return self.body
        shown = [
            {
                name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
                for name, value in it.items()
            }
            for it in self.messages
        ]
        return orjson.dumps({"messages": shown})

    @property
    def headers(self) -> dict[str, str]:
        fields = {"X-PushHub-Region": self.region, "Authorization": self.authorization}
        return {name: value for name, value in fields.items() if value}

    def protobuf(self) -> ProtobufMessage | None:
        """Return the request of gRPC; None for what it cannot say."""
        if self.body is not None:
            return None
        names = {"data": "data", "attributes": "attributes", "orderingKey": "ordering_key"}
        try:
            messages = [{names[name]: value for name, value in it.items() if value is not None} for it in self.messages]
            if any(not isinstance(it.get("data", b""), bytes) for it in messages):
                return None
            request: ProtobufMessage = pubsub.PublishRequest.pb()(
                topic=f"projects/shop/topics/{self.topic}", messages=messages
            )
        except (KeyError, TypeError, ValueError):
            return None
        return request


def cases(tokens: list[str]) -> Iterator[Case]:
    dice = random.Random(8)

    def message(*, is_good: bool) -> dict[str, Any]:
        if is_good:
            return {"data": dice.choice(DATA[:5]) or b"x", "attributes": dice.choice(ATTRIBUTES[:4])}
        fields = {"data": dice.choice(DATA), "attributes": dice.choice(ATTRIBUTES), "orderingKey": dice.choice(KEYS)}
        return {name: fields[name] for name in fields if dice.random() < 0.7} | dice.choice(EXTRA)

    for number in range(REQUESTS):
        is_good = dice.random() < 0.75
        topic = dice.choice(TOPICS)
        count = dice.choice([0, 1, 1, 1, 2, 3, 31, 101, 1000, 1001]) if number % 10 == 0 else dice.choice([1, 1, 2])
        messages = [message(is_good=is_good) for _ in range(count)]
        region = dice.choice(["local", "far", "far", "nowhere", "BAD REGION"]) if dice.random() < 0.3 else ""
        authorization = dice.choice(["", *tokens, "Bearer nonsense", "Basic x"]) if dice.random() < 0.3 else ""
        body = dice.choice(BODIES) if dice.random() < 0.05 else None
        yield Case(topic, messages, body, region, authorization)


@dataclass(frozen=True)
class Outcome:
    """The code and message of an error, or how many messages were published."""

    code: str
    text: Any


@pytest.fixture
def api(redis_url: str, settings: Any) -> Iterator[DirectApi]:
    settings.REGIONS = REGIONS
    with direct_api(threads=2) as api:
        api.create("topics/orders")
        api.create("subscriptions/worker", {"topic": "projects/shop/topics/orders"})
        api.create("topics/filtered")
        filtered = {"topic": "projects/shop/topics/filtered", "filter": 'attributes.kind = "a"'}
        api.create("subscriptions/filtered", filtered)
        definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
        assert api.post("schemas?schemaId=numbers", {"type": "AVRO", "definition": definition}).status == 200
        api.create(
            "topics/checked", {"schemaSettings": {"schema": "projects/shop/schemas/numbers", "encoding": "JSON"}}
        )
        code = "function f(m) { if (m.data == 'fail') throw new Error('no'); return m.data == 'drop' ? null : m; }"
        transforms = [{"javascriptUdf": {"functionName": "f", "code": code}}]
        api.create("topics/shaped", {"messageTransforms": transforms})
        policy = {"allowedPersistenceRegions": ["local"], "enforceInTransit": True}
        api.create("topics/strict", {"messageStoragePolicy": policy})
        yield api


@pytest.fixture
def tokens(api: DirectApi) -> list[str]:
    """Credentials of somebody who may publish to one topic, and of somebody who may do nothing."""
    grants.grant_role(
        Topic.objects.get(topic_id="orders"), role="roles/pubsub.publisher", member="user:ada@example.com"
    )
    return [f"Bearer {create_access_token(member=f'user:{name}@example.com').token}" for name in ("ada", "bob")]


def by_rest(api: DirectApi, case: Case, **headers: str) -> tuple[Outcome, list[tuple[str, str]], bytes]:
    path = f"topics/{case.topic}:publish"
    status, fields, content = api.exchange("POST", path, case.json, **case.headers, **headers)
    body = orjson.loads(content)
    if status == 200:
        content = re.sub(rb"\d+", b"", content)
        outcome = Outcome("OK", len(body["messageIds"]))
    else:
        assert status == body["error"]["code"]
        outcome = Outcome(body["error"]["status"], body["error"]["message"])
    return outcome, sorted(field for field in fields if field[0] != "Date"), content


def by_grpc(channel: grpc.Channel, case: Case) -> Outcome | None:
    request = case.protobuf()
    if request is None:
        return None
    publish = channel.unary_unary(
        "/google.pubsub.v1.Publisher/Publish",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=pubsub.PublishResponse.pb().FromString,
    )
    metadata = [(name.lower(), value) for name, value in case.headers.items()]
    try:
        return Outcome("OK", len(publish(request, metadata=metadata, timeout=60).message_ids))
    except grpc.RpcError as error:
        return Outcome(error.code().name, error.details())


def by_console(client: Client, case: Case) -> str | None:
    """Return the error's text that the form shows, or "" for none; None for a request that a form cannot make."""
    topic = Topic.objects.filter(topic_id=case.topic).first()
    if topic is None or case.headers or case.body is not None or len(case.messages) != 1:
        return None
    message = {"data": b"", "attributes": {}, "orderingKey": ""} | case.messages[0]
    try:
        text = message["data"].decode()
    except (AttributeError, UnicodeDecodeError):
        return None
    if len(message) > 3 or not isinstance(message["attributes"], dict) or not isinstance(message["orderingKey"], str):
        return None
    form = {
        "text": text,
        "attributes": orjson.dumps(message["attributes"]).decode(),
        "ordering_key": message["orderingKey"],
    }
    response = client.post(f"/admin/subscriptions/topic/{topic.pk}/overview/", form)
    if response.status_code == 302:
        return ""
    [[error]] = response.context["form"].errors.values()
    return str(error)


def test_each_way_gives_the_same_answer(api: DirectApi, tokens: list[str], redis_url: str) -> None:
    client = root_client()
    seen: Counter[str] = Counter()
    with (
        GrpcServer(redis_url, rest="http://127.0.0.1:9", PUSHHUB_REGIONS="far") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        for number, case in enumerate(cases(tokens)):
            direct = by_rest(api, case)
            django = by_rest(api, case, **{"X-Unknown": "1"})
            assert direct == django, (number, case)
            outcome = direct[0]
            seen[outcome.code] += 1
            over_grpc = by_grpc(channel, case)
            if over_grpc is not None:
                seen["gRPC"] += 1
                assert over_grpc == outcome, (number, case)
            in_console = by_console(client, case)
            if in_console is not None:
                seen["console"] += 1
                assert in_console == ("" if outcome.code == "OK" else outcome.text), (number, case)
    # Each way and each answer had its share.
    seen += Counter(api.outcomes)
    assert min(seen[way] for way in ("direct", "given back", "gRPC", "OK", "INVALID_ARGUMENT")) > 100, seen
    assert min(seen[way] for way in ("console", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND")) > 20, seen
    assert seen["FAILED_PRECONDITION"] > 5, seen
