"""Schemas over REST: their revisions, their validation, and messages published under them."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import Iterator
from typing import Any
from unittest import mock

import orjson
import pytest
from django.db import connection, transaction
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from deliveries.publish.service import publish_message
from deliveries.rules.payload import NewMessage
from deliveries.store.sql import fetch_rows
from pushhub.common.names import DELETED_SCHEMA
from pushhub.common.sizedcache import SizedCache
from subscriptions.iam.custom_roles import create_role
from subscriptions.iam.grants import grant_role
from subscriptions.models import Topic
from subscriptions.schemarules import limits
from subscriptions.schemarules.validators import Definition
from subscriptions.selectors import get_project, get_schema
from subscriptions.services import schemas
from subscriptions.services.projects import create_project
from subscriptions.services.topics import update_topic
from tests.beside import Beside
from tests.ports import wait_for
from tests.restapi import Answer, Api

pytestmark = pytest.mark.usefixtures("shop")

NAME = "projects/shop/schemas/order"
AVRO = orjson.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
).decode()
NARROWER = orjson.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}).decode()
NARROWER_PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; }'
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; string note = 2; enum E { A = 0; } }'
GOOD = b'{"id":7,"note":{"string":"x"}}'


@pytest.fixture
def shop(api: Api, redis_url: str) -> None:
    create_project(project_id="shop")


@pytest.fixture
def kept() -> Iterator[SizedCache[Any, Any]]:
    """The validators that this process keeps, and none of other tests."""
    kept: SizedCache[Any, Any] = SizedCache(most_bytes=schemas.KEPT_DEFINITION_BYTES)
    with mock.patch.object(schemas, "_kept", kept):
        yield kept


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def created(api: Api, definition: str = AVRO, type_: str = "AVRO", schema_id: str = "order") -> Any:
    answer = api.post(f"schemas?schemaId={schema_id}", {"type": type_, "definition": definition})
    assert answer.status == 200, answer
    return answer.body


def committed(api: Api, definition: str = NARROWER) -> Any:
    answer = api.post("schemas/order:commit", {"schema": {"name": NAME, "type": "AVRO", "definition": definition}})
    assert answer.status == 200, answer
    return answer.body


def publish(api: Api, *data: bytes, topic: str = "orders") -> Answer:
    return api.post(f"topics/{topic}:publish", {"messages": [{"data": encoded(payload)} for payload in data]})


def attributes_of(api: Api, answer: Answer) -> list[dict[str, str]]:
    """Return the attributes that a subscriber gets with the messages of a publish."""
    assert answer.status == 200, answer
    received = api.post("subscriptions/all:pull", {"maxMessages": 100, "returnImmediately": True}).body
    attributes_by_id = {
        entry["message"]["messageId"]: entry["message"].get("attributes", {}) for entry in received["receivedMessages"]
    }
    return [attributes_by_id[message_id] for message_id in answer.body["messageIds"]]


def topic_with(api: Api, **settings: str) -> None:
    api.create("topics/orders", {"schemaSettings": {"schema": NAME, "encoding": "JSON", **settings}})
    api.create("subscriptions/all", {"topic": "projects/shop/topics/orders"})


def test_a_schema_is_created_read_listed_and_deleted(api: Api) -> None:
    schema = created(api)
    assert schema["name"] == NAME and schema["type"] == "AVRO" and schema["definition"] == AVRO
    assert re.fullmatch("[0-9a-f]{8}", schema["revisionId"]) and schema["revisionCreateTime"].endswith("Z")
    basic = {key: value for key, value in schema.items() if key != "definition"}
    assert api.get("schemas/order").body == schema
    assert api.get(f"schemas/order@{schema['revisionId']}").body == schema
    assert api.get("schemas/order?view=BASIC").body == basic
    assert api.get("schemas").body == {"schemas": [basic]}
    assert api.get("schemas?view=FULL").body == {"schemas": [schema]}
    assert api.get("schemas?view=2").body == {"schemas": [schema]}
    assert api.get("schemas?view=HALF").status == 400
    again = api.post("schemas?schemaId=order", {"type": "AVRO", "definition": AVRO})
    assert (again.status, again.error["status"]) == (409, "ALREADY_EXISTS")
    assert api.delete("schemas/order").body == {}
    assert api.get("schemas/order").error["message"] == "Resource not found (resource=order)."


def test_a_list_reads_definitions_only_if_it_shows_them(api: Api, django_assert_max_num_queries: Any) -> None:
    """A page of a thousand schemas has up to 300 MB of them."""
    for number in range(9):
        created(api, schema_id=f"schema-{number}")
    with django_assert_max_num_queries(6) as queries:
        assert len(api.get("schemas").body["schemas"]) == 9
    assert not [query for query in queries.captured_queries if '"definition"' in query["sql"]]
    with django_assert_max_num_queries(6):
        assert [schema["definition"] for schema in api.get("schemas?view=FULL").body["schemas"]] == [AVRO] * 9


def test_the_name_in_a_new_schema_is_ignored(api: Api) -> None:
    """schema.proto says so, and Terraform's provider for Google has the id alone there."""
    answer = api.post("schemas?schemaId=order", {"name": "order", "type": "AVRO", "definition": AVRO})
    assert (answer.status, answer.body.get("name")) == (200, NAME)


def test_revisions_are_committed_rolled_back_listed_and_deleted(api: Api) -> None:
    first, second = created(api), committed(api)
    assert second["revisionId"] != first["revisionId"] and second["definition"] == NARROWER
    assert api.get("schemas/order").body == second
    third = api.post("schemas/order:rollback", {"revisionId": first["revisionId"]}).body
    assert third["definition"] == AVRO and third["revisionId"] not in (first["revisionId"], second["revisionId"])
    listed = api.get("schemas/order:listRevisions?view=FULL").body["schemas"]
    assert listed == [first, second, third]
    page = api.get("schemas/order:listRevisions?pageSize=2").body
    rest = api.get(f"schemas/order:listRevisions?pageSize=2&pageToken={page['nextPageToken']}").body
    assert [revision["revisionId"] for revision in rest["schemas"]] == [third["revisionId"]]
    assert "nextPageToken" not in rest
    assert api.delete(f"schemas/order@{third['revisionId']}:deleteRevision").body == second
    assert api.delete(f"schemas/order:deleteRevision?revisionId={second['revisionId']}").body == first
    last = api.delete(f"schemas/order@{first['revisionId']}:deleteRevision")
    assert last.error["status"] == "FAILED_PRECONDITION"
    assert api.post("schemas/order:rollback", {"revisionId": "00000000"}).status == 404
    assert api.post("schemas/order:rollback", {}).fields == ["revisionId"]
    assert api.get("schemas/order:listRevisions?view=FULL").body["schemas"] == [first]
    assert api.delete("schemas/order:deleteRevision").status == 400


def test_a_revision_is_compatible_with_all_older_ones(api: Api) -> None:
    """Given a field that the last revision dropped, when another takes its number, then the commit is refused."""
    first = created(api, PROTO, "PROTOCOL_BUFFER")["revisionId"]
    commit = {"name": NAME, "type": "PROTOCOL_BUFFER", "definition": NARROWER_PROTO}
    assert api.post("schemas/order:commit", {"schema": commit}).status == 200
    other = {**commit, "definition": PROTO.replace("string note", "int32 grade")}

    answer = api.post("schemas/order:commit", {"schema": other})

    assert (answer.status, answer.error["status"], answer.fields) == (400, "INVALID_ARGUMENT", ["schema.definition"])
    assert answer.error["message"] == (
        f'Compatibility checking failed to commit a schema revision for (schema="{NAME}"). (reason="Revision is '
        f"incompatible with previous revision: {first}. Failed with error: shop.Order.grade = 2 of type int32 is not "
        'compatible with shop.Order.note = 2 of type string"). Refer to https://cloud.google.com/pubsub/docs/schemas '
        "for more information."
    )
    assert api.post("schemas:validate", {"schema": other}).status == 200
    assert len(api.get("schemas/order:listRevisions").body["schemas"]) == 2
    api.delete(f"schemas/order@{first}:deleteRevision")
    assert api.post("schemas/order:commit", {"schema": other}).status == 200


def test_a_revision_that_comes_during_a_comparison_is_compared_too(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    created(api, NARROWER)
    one, other = (
        {"type": "AVRO", "definition": NARROWER.replace("]}", f',{{"name":"n","type":"{kind}","default":{value}}}]}}')}
        for kind, value in (("int", 0), ("string", '""'))
    )
    compare = schemas.fault_between

    def commit_meanwhile(*definitions: Any) -> str:
        monkeypatch.setattr(schemas, "fault_between", compare)
        schemas.commit_schema(name=NAME, request={"schema": one})
        return compare(*definitions)

    monkeypatch.setattr(schemas, "fault_between", commit_meanwhile)
    assert "can't be read as" in api.post("schemas/order:commit", {"schema": other}).error["message"]


def test_a_schema_keeps_its_type_and_has_a_bound_on_its_revisions(api: Api) -> None:
    created(api)
    other = api.post("schemas/order:commit", {"schema": {"type": "PROTOCOL_BUFFER", "definition": PROTO}})
    assert other.fields == ["schema.type"]
    for _ in range(limits.MAX_REVISIONS - 1):
        committed(api)
    full = api.post("schemas/order:commit", {"schema": {"type": "AVRO", "definition": AVRO}})
    assert (full.status, full.error["status"]) == (429, "RESOURCE_EXHAUSTED")


def test_a_project_has_a_bound_on_its_schemas(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subscriptions.services.schemas.MAX_SCHEMAS", 1)
    created(api)
    answer = api.post("schemas?schemaId=other", {"type": "AVRO", "definition": AVRO})
    assert answer.error["status"] == "RESOURCE_EXHAUSTED"


@pytest.mark.any_database
@pytest.mark.parametrize(
    "definition",
    [
        "",
        "{",
        '["null","string"]',
        '{"type":"record","name":"A","fields":[{"name":"b","type":"missing"}]}',
        '{"type":"record","name":"A","fields":[{"name":"b","type":'
        + '{"type":"array","items":' * 80
        + '"int"'
        + "}" * 82,
        '{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"array","items":"null"}}]}',
        '{"type":"record","name":"A","fields":3}',
        '{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"fixed","name":"F","size":-4}}]}',
        "[" * 100_000,
    ],
)
def test_a_bad_avro_definition_is_refused(api: Api, definition: str) -> None:
    for answer in (
        api.post("schemas?schemaId=order", {"type": "AVRO", "definition": definition}),
        api.post("schemas:validate", {"schema": {"type": "AVRO", "definition": definition}}),
    ):
        assert (answer.status, answer.fields) == (400, ["schema.definition"])
        assert answer.error["message"].startswith("Schema definition is invalid: ")


@pytest.mark.any_database
@pytest.mark.parametrize(
    "definition",
    [
        "message {",
        'syntax = "proto3"; message A {} message B {}',
        'syntax = "proto3"; enum A { B = 0; }',
        'syntax = "proto3"; import "other.proto"; message A {}',
        'syntax = "proto3"; import "/etc/passwd"; message A {}',
        'syntax = "proto3"; message A { Missing b = 1; }',
    ],
)
def test_a_bad_protocol_buffer_definition_is_refused(api: Api, definition: str) -> None:
    answer = api.post("schemas:validate", {"schema": {"type": "PROTOCOL_BUFFER", "definition": definition}})
    assert (answer.status, answer.fields) == (400, ["schema.definition"])
    assert "/tmp" not in answer.error["message"]


def test_a_definition_that_is_too_large_is_refused(api: Api) -> None:
    answer = api.post(
        "schemas?schemaId=order", {"type": "AVRO", "definition": AVRO + " " * limits.MAX_DEFINITION_BYTES}
    )
    assert "but the maximum value is 307200." in answer.error["message"]


def descriptor_set(*files: FileDescriptorProto) -> bytes:
    return FileDescriptorSet(file=files).SerializeToString()


def compiled_file(name: str, message: str, field: str, type_: str, *, imports: str) -> FileDescriptorProto:
    """Return a compiled file with one message, which has an id and a field of a type that the file imports."""
    label = FieldDescriptorProto.LABEL_OPTIONAL
    fields = [
        FieldDescriptorProto(name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=label),
        FieldDescriptorProto(
            name=field, number=2, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=type_, label=label
        ),
    ]
    return FileDescriptorProto(
        name=name,
        package="shop",
        syntax="proto3",
        dependency=[imports],
        message_type=[DescriptorProto(name=message, field=fields)],
    )


ORDER = compiled_file("order.proto", "Order", "item", ".shop.Item", imports="item.proto")
ITEM = compiled_file(
    "item.proto", "Item", "at", ".google.protobuf.Timestamp", imports="google/protobuf/timestamp.proto"
)
COMPILED = {"rootMessage": "shop.Order", "compiledBytes": encoded(descriptor_set(ORDER, ITEM))}
COMPILED_SCHEMA = {"type": "PROTOCOL_BUFFER", "compiledProtoSchema": COMPILED}


def test_a_compiled_definition_checks_messages(api: Api) -> None:
    assert api.post("schemas?schemaId=order", COMPILED_SCHEMA).body["compiledProtoSchema"] == COMPILED
    assert api.get("schemas/order").body["compiledProtoSchema"] == COMPILED
    assert "compiledProtoSchema" not in api.get("schemas").body["schemas"][0]
    api.create("topics/orders", {"schemaSettings": {"schema": NAME, "encoding": "JSON"}})

    good = encoded(b'{"id": "7", "item": {"at": "2026-01-01T00:00:00Z"}}')
    assert api.post("topics/orders:publish", {"messages": [{"data": good}]}).status == 200
    for bad in (b'{"id": "x"}', b'{"item": {"at": "yesterday"}}', b'{"other": 1}'):
        answer = api.post("topics/orders:publish", {"messages": [{"data": encoded(bad)}]})
        assert (answer.status, answer.fields) == (400, ["messages[0].data"])


def test_a_compiled_definition_is_rolled_back_to(api: Api) -> None:
    first = api.post("schemas?schemaId=order", COMPILED_SCHEMA).body["revisionId"]
    commit = {"schema": {"name": NAME, "type": "PROTOCOL_BUFFER", "definition": NARROWER_PROTO}}
    assert "compiledProtoSchema" not in api.post("schemas/order:commit", commit).body
    rolled_back = api.post("schemas/order:rollback", {"revisionId": first})
    assert rolled_back.body["compiledProtoSchema"] == COMPILED
    message = {"name": NAME, "encoding": "JSON", "message": encoded(b'{"item": {"id": 1}}')}
    assert api.post("schemas:validateMessage", message).status == 200


SELF_IMPORTING = compiled_file("order.proto", "Order", "item", ".shop.Order", imports="order.proto")
RESERVED = FileDescriptorProto(name="mine.proto", package="google.protobuf", message_type=[DescriptorProto(name="Any")])


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"compiledBytes": ""}, "compiledBytes", "it is empty"),
        ({"compiledBytes": "%"}, "compiledBytes", "Base64"),
        ({"compiledBytes": encoded(b"\xff")}, "compiledBytes", "not a FileDescriptorSet"),
        ({"compiledBytes": encoded(b"\0" * 307_201)}, "compiledBytes", "307201 bytes"),
        ({"compiledBytes": encoded(descriptor_set(ORDER))}, "compiledBytes", "item.proto"),
        ({"compiledBytes": encoded(descriptor_set(SELF_IMPORTING))}, "compiledBytes", "import each other"),
        ({"compiledBytes": encoded(descriptor_set(RESERVED))}, "compiledBytes", "reserved"),
        ({"rootMessage": ""}, "rootMessage", "missing"),
        ({"rootMessage": "Order"}, "rootMessage", "full name"),
    ],
)
def test_a_bad_compiled_definition_is_refused(api: Api, changes: dict[str, str], field: str, message: str) -> None:
    schema = {"type": "PROTOCOL_BUFFER", "compiledProtoSchema": {**COMPILED, **changes}}
    for answer in (api.post("schemas?schemaId=order", schema), api.post("schemas:validate", {"schema": schema})):
        assert (answer.status, answer.fields) == (400, [f"schema.compiledProtoSchema.{field}"])
        assert message in answer.error["message"]


@pytest.mark.parametrize("other", [{"type": "AVRO"}, {"definition": PROTO}])
def test_a_compiled_definition_is_the_only_one(api: Api, other: dict[str, str]) -> None:
    answer = api.post("schemas?schemaId=order", {**COMPILED_SCHEMA, **other})
    assert (answer.status, answer.fields) == (400, ["schema.compiledProtoSchema"])


@pytest.mark.parametrize("encoding", ["JSON", "BINARY"])
@pytest.mark.parametrize(("type_", "definition"), [("AVRO", AVRO), ("PROTOCOL_BUFFER", PROTO)])
def test_a_message_is_validated(api: Api, type_: str, definition: str, encoding: str) -> None:
    good = {
        ("AVRO", "JSON"): GOOD,
        ("AVRO", "BINARY"): b"\x0e\x02\x02x",
        ("PROTOCOL_BUFFER", "JSON"): b'{"id":"7","note":"x"}',
        ("PROTOCOL_BUFFER", "BINARY"): b"\x08\x07\x12\x01x",
    }[type_, encoding]
    created(api, definition, type_)
    for by in ({"name": NAME}, {"schema": {"type": type_, "definition": definition}}):
        fine = api.post("schemas:validateMessage", {**by, "encoding": encoding, "message": encoded(good)})
        assert fine.body == {}
        bad = api.post("schemas:validateMessage", {**by, "encoding": encoding, "message": encoded(good[:-1])})
        assert bad.error["message"].startswith("Invalid data in message: Message failed schema validation.")
        assert bad.fields == ["message"]
    assert api.post("schemas:validateMessage", {"name": NAME, "message": ""}).fields == ["encoding"]
    assert api.post("schemas:validateMessage", {"encoding": "JSON"}).fields == ["name"]


def test_published_messages_name_the_schema_that_they_were_checked_against(api: Api) -> None:
    schema = created(api)
    topic_with(api)
    answer = api.post(
        "topics/orders:publish",
        {"messages": [{"data": encoded(GOOD)}, {"data": encoded(GOOD), "attributes": {"own": "1"}}]},
    )
    stamp = {
        "googclient_schemaencoding": "JSON",
        "googclient_schemaname": NAME,
        "googclient_schemarevisionid": schema["revisionId"],
    }
    assert attributes_of(api, answer) == [stamp, {**stamp, "own": "1"}]


def test_a_single_mismatching_message_refuses_the_request(api: Api) -> None:
    created(api)
    topic_with(api)
    answer = publish(api, GOOD, b'{"id":"seven","note":null}')
    assert answer.fields == ["messages[1].data"]
    assert answer.error["message"] == (
        "Invalid data in message: Message failed schema validation. message.id must be long."
    )
    assert api.post("subscriptions/all:pull", {"maxMessages": 9, "returnImmediately": True}).body == {}


def test_the_check_of_a_publish_has_a_bound_on_its_time(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message has one of its own, and a publish a thousand messages, each of which was compared with 20 revisions."""
    created(api), committed(api)
    topic_with(api)
    monkeypatch.setattr(schemas, "thread_time", itertools.count(0, schemas.CHECK_SECONDS / 4).__next__)
    assert publish(api, GOOD, b'{"id":7}').status == 200
    answer = publish(api, GOOD, GOOD, b'{"id":7}', b'{"id":7}')
    assert (answer.error["status"], answer.fields) == ("INVALID_ARGUMENT", ["messages"])
    assert answer.error["message"].endswith("takes longer than 10 s. Publish fewer messages in one request.")
    received = api.post("subscriptions/all:pull", {"maxMessages": 9, "returnImmediately": True}).body
    assert len(received["receivedMessages"]) == 2


def test_the_newest_revision_of_the_range_that_matches_is_named(api: Api) -> None:
    first, second = created(api), committed(api)
    topic_with(api)
    older, newer = GOOD, b'{"id":7}'
    revision_ids = [
        attributes["googclient_schemarevisionid"] for attributes in attributes_of(api, publish(api, older, newer))
    ]
    assert revision_ids == [first["revisionId"], second["revisionId"]]
    only_first = {"topic": {"schemaSettings": {"lastRevisionId": first["revisionId"]}}}
    assert api.patch("topics/orders", {**only_first, "updateMask": "schemaSettings.lastRevisionId"}).status == 200
    assert publish(api, older).status == 200 and publish(api, newer).status == 400
    assert api.delete(f"schemas/order@{first['revisionId']}:deleteRevision").error["status"] == "FAILED_PRECONDITION"
    only_second = {"schemaSettings": {"schema": NAME, "encoding": "JSON", "firstRevisionId": second["revisionId"]}}
    assert api.patch("topics/orders", {"topic": only_second, "updateMask": "schemaSettings"}).status == 200
    assert publish(api, older).status == 400 and publish(api, newer).status == 200
    upside_down = {**only_second["schemaSettings"], "lastRevisionId": first["revisionId"]}
    answer = api.patch("topics/orders", {"topic": {"schemaSettings": upside_down}, "updateMask": "schemaSettings"})
    assert answer.fields == ["schemaSettings.firstRevisionId"]


def test_each_revision_is_compiled_once_a_request_however_few_are_kept(
    api: Api, kept: SizedCache[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty large revisions are not kept together, and were compiled for each of a thousand messages."""
    created(api), committed(api)
    topic_with(api)
    monkeypatch.setattr(kept, "_left", 0)
    with mock.patch.object(Definition, "validators", autospec=True, side_effect=Definition.validators) as compiled:
        assert publish(api, GOOD, b'{"id":7}', GOOD, GOOD).status == 200
    assert compiled.call_count == 2
    refused = publish(api, GOOD, b'{"id":true}', b"{}")
    assert refused.fields == ["messages[1].data"] and "message.id must be long" in refused.error["message"]


def test_a_field_that_the_newest_revision_lacks_matches_an_older_one(api: Api) -> None:
    first = created(api, PROTO, "PROTOCOL_BUFFER")
    narrower = {"name": NAME, "type": "PROTOCOL_BUFFER", "definition": NARROWER_PROTO}
    second = api.post("schemas/order:commit", {"schema": narrower}).body
    topic_with(api, encoding="BINARY")

    messages = attributes_of(api, publish(api, b"\x08\x07", b"\x08\x07\x12\x01x"))

    assert [attributes["googclient_schemarevisionid"] for attributes in messages] == [
        second["revisionId"],
        first["revisionId"],
    ]


def test_the_topic_of_a_deleted_schema_says_so_and_refuses_messages(api: Api) -> None:
    created(api)
    topic_with(api)
    api.delete("schemas/order")
    created(api)  # a new schema of the same name is another schema
    assert api.get("topics/orders").body["schemaSettings"] == {"schema": DELETED_SCHEMA, "encoding": "JSON"}
    assert publish(api, GOOD).error["status"] == "FAILED_PRECONDITION"
    labels = api.patch("topics/orders", {"topic": {"labels": {"a": "b"}}, "updateMask": "labels"})
    assert labels.body["schemaSettings"]["schema"] == DELETED_SCHEMA
    off = api.patch("topics/orders", {"topic": {}, "updateMask": "schemaSettings"})
    assert "schemaSettings" not in off.body and publish(api, b"anything").status == 200


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("schema_settings", "status", "field"),
    [
        ({"schema": "projects/shop/schemas/none", "encoding": "JSON"}, 404, None),
        ({"schema": "order", "encoding": "JSON"}, 400, "schemaSettings.schema"),
        ({"schema": NAME}, 400, "schemaSettings.encoding"),
        ({"schema": NAME + "@00000000", "encoding": "JSON"}, 400, "schemaSettings.schema"),
        ({"schema": NAME, "encoding": "JSON", "firstRevisionId": "00000000"}, 404, None),
    ],
)
def test_bad_schema_settings_are_refused(
    api: Api, schema_settings: dict[str, str], status: int, field: str | None
) -> None:
    created(api)
    answer = api.put("topics/orders", {"schemaSettings": schema_settings})
    assert answer.status == status and (field is None or answer.fields == [field])
    assert not Topic.objects.exists()


def test_a_publish_without_a_schema_makes_no_more_queries(api: Api, django_assert_max_num_queries: Any) -> None:
    api.create("topics/plain")
    publish(api, b"warm", topic="plain")
    topic = Topic.objects.select_related("project").get(topic_id="plain")
    with django_assert_max_num_queries(8) as queries:
        publish_message(topic=topic, messages=[NewMessage(b"x", {})])
    assert not [query for query in queries.captured_queries if "schema" in query["sql"]]


def test_a_topic_needs_a_permission_on_its_schema(api: Api) -> None:
    created(api)
    api.create("topics/plain")
    api.sign_in("ada@example.com")
    shop, schema = get_project(project="shop"), get_schema(name=NAME)
    role = create_role(
        shop, {"roleId": "topics", "role": {"includedPermissions": ["pubsub.topics.create", "pubsub.topics.update"]}}
    )
    grant_role(shop, role=role.name, member="user:ada@example.com")
    settings = {"schemaSettings": {"schema": NAME, "encoding": "JSON"}}

    def tried() -> list[int]:
        return [
            api.put("topics/new", settings).status,
            api.patch("topics/plain", {"topic": settings, "updateMask": "schemaSettings"}).status,
        ]

    assert tried() == [403, 403] and not Topic.objects.filter(topic_id="new").exists()
    grant_role(schema, role="roles/pubsub.admin", member="user:ada@example.com")
    assert tried() == [200, 200]


def test_compiled_definitions_are_bounded_by_their_bytes(api: Api, kept: SizedCache[Any, Any]) -> None:
    definition = orjson.dumps({"type": "record", "name": "R", "doc": "x" * 290_000, "fields": []}).decode()
    for number in range(20):
        created(api, definition, schema_id=f"large-{number}")
        request = {"name": f"projects/shop/schemas/large-{number}", "message": encoded(b"{}"), "encoding": "JSON"}
        assert api.post("schemas:validateMessage", request).status == 200
    assert len(kept._entries) == schemas.KEPT_DEFINITION_BYTES // len(definition)


@pytest.mark.django_db(transaction=True)
def test_a_topic_waits_for_its_schema_before_it_is_locked(api: Api) -> None:
    """Whoever deletes a schema locks it first, then the topics that use it: the other way round they deadlock."""
    if connection.vendor != "postgresql":
        pytest.xfail("SQLite has one writer")
    created(api)
    topic_with(api)
    body = {"topic": {"schemaSettings": {"encoding": "BINARY"}}, "updateMask": "schemaSettings.encoding"}
    with transaction.atomic():
        get_schema(name=NAME, lock=True)
        update = Beside(lambda: update_topic(name="projects/shop/topics/orders", request=body))
        wait_for(lambda: fetch_rows("SELECT FROM pg_locks WHERE NOT granted"), what="the update to wait")
        assert Topic.objects.select_for_update(nowait=True).get().topic_id == "orders"
    update.end()
    assert api.get("topics/orders").body["schemaSettings"]["encoding"] == "BINARY"
