"""The fields of schemas and of the topics that use them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.pubsub_v1 import Encoding, Schema, SchemaView

from tests.compatibility.fields.trials import Shop, tries

PROJECT = "projects/shop"
NAME = "projects/shop/schemas/order"
NARROW = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
NOTE = {"name": "note", "type": "string", "default": ""}
WIDE = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, NOTE]})
AVRO = Schema.Type.AVRO


def create(shop: Shop, definition: str = NARROW, schema_id: str = "order") -> Any:
    schema = {"type_": AVRO, "definition": definition}
    return shop.schemas.create_schema({"parent": PROJECT, "schema": schema, "schema_id": schema_id})


def commit(shop: Shop, definition: str = WIDE) -> Any:
    schema = {"name": NAME, "type_": AVRO, "definition": definition}
    return shop.schemas.commit_schema({"name": NAME, "schema": schema})


@tries("CreateSchemaRequest", "parent", "schema", "schemaId")
@tries("Schema", "name", "definition", "revisionId", "revisionCreateTime")
@tries("GetSchemaRequest", "name", "view")
@tries("DeleteSchemaRequest", "name")
def test_a_schema_is_created_read_and_deleted(shop: Shop) -> None:
    schema = {"type_": AVRO, "definition": NARROW}
    created = shop.schemas.create_schema({"parent": PROJECT, "schema": schema, "schema_id": "order"})
    assert created.name == NAME

    full = shop.schemas.get_schema({"name": NAME, "view": SchemaView.FULL})
    basic = shop.schemas.get_schema({"name": NAME, "view": SchemaView.BASIC})

    assert (full.definition, basic.definition) == (NARROW, "")
    assert full.revision_id == created.revision_id != ""
    assert abs((datetime.now(UTC) - full.revision_create_time).total_seconds()) < 3600
    shop.schemas.delete_schema({"name": NAME})
    with pytest.raises(exceptions.NotFound):
        shop.schemas.get_schema({"name": NAME})


@tries("Schema", "compiledProtoSchema")
@tries("CompiledProtoSchema", "compiledBytes", "rootMessage")
def test_a_schema_is_created_from_its_compiled_form(shop: Shop) -> None:
    files = FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    compiled = {"root_message": "google.protobuf.Timestamp", "compiled_bytes": files.SerializeToString()}
    schema = {"type_": Schema.Type.PROTOCOL_BUFFER, "compiled_proto_schema": compiled}

    created = shop.schemas.create_schema({"parent": PROJECT, "schema": schema, "schema_id": "order"})

    assert created.compiled_proto_schema.root_message == compiled["root_message"]
    assert created.compiled_proto_schema.compiled_bytes == compiled["compiled_bytes"]
    message = {"parent": PROJECT, "name": NAME, "encoding": Encoding.JSON}
    shop.schemas.validate_message({**message, "message": b'"2026-01-01T00:00:00Z"'})
    with pytest.raises(exceptions.InvalidArgument):
        shop.schemas.validate_message({**message, "message": b'"yesterday"'})


@tries("Schema", "type")
@tries("ValidateSchemaRequest", "parent", "schema")
def test_a_definition_is_read_as_its_type(shop: Shop) -> None:
    proto = {"type_": Schema.Type.PROTOCOL_BUFFER, "definition": 'syntax = "proto3"; message M { int64 id = 1; }'}
    shop.schemas.validate_schema({"parent": PROJECT, "schema": proto})
    with pytest.raises(exceptions.InvalidArgument):
        shop.schemas.validate_schema({"parent": PROJECT, "schema": {**proto, "type_": AVRO}})
    with pytest.raises(exceptions.InvalidArgument, match="name"):
        shop.schemas.validate_schema({"parent": "shop", "schema": proto})


@tries("ListSchemasRequest", "parent", "pageSize", "pageToken", "view")
@tries("ListSchemasResponse", "schemas", "nextPageToken")
def test_schemas_are_listed_page_by_page(shop: Shop) -> None:
    create(shop)
    create(shop, schema_id="parcel")
    first, second = shop.schemas.list_schemas({"parent": PROJECT, "page_size": 1, "view": SchemaView.FULL}).pages
    assert [schema.name for page in (first, second) for schema in page.schemas] == [
        NAME,
        "projects/shop/schemas/parcel",
    ]
    assert first.schemas[0].definition == NARROW
    request = {"parent": PROJECT, "page_token": first.next_page_token, "view": SchemaView.BASIC}
    [rest] = shop.schemas.list_schemas(request).pages
    assert [(schema.name, schema.definition) for schema in rest.schemas] == [("projects/shop/schemas/parcel", "")]


@tries("CommitSchemaRequest", "name", "schema")
@tries("RollbackSchemaRequest", "name", "revisionId")
@tries("ListSchemaRevisionsRequest", "name", "pageSize", "pageToken", "view")
@tries("ListSchemaRevisionsResponse", "schemas", "nextPageToken")
@tries("DeleteSchemaRevisionRequest", "name")
def test_revisions_are_committed_rolled_back_listed_and_deleted(shop: Shop) -> None:
    narrow = create(shop)
    wide = {"name": NAME, "type_": AVRO, "definition": WIDE}
    committed = shop.schemas.commit_schema({"name": NAME, "schema": wide})
    assert committed.definition == WIDE
    rolled_back = shop.schemas.rollback_schema({"name": NAME, "revision_id": narrow.revision_id})
    assert rolled_back.definition == NARROW

    pages = list(shop.schemas.list_schema_revisions({"name": NAME, "page_size": 2, "view": SchemaView.FULL}).pages)

    assert [[revision.definition for revision in page.schemas] for page in pages] == [[NARROW, WIDE], [NARROW]]
    request = {"name": NAME, "page_token": pages[0].next_page_token, "view": SchemaView.BASIC}
    [rest] = shop.schemas.list_schema_revisions(request).pages
    assert [revision.definition for revision in rest.schemas] == [""]
    shop.schemas.delete_schema_revision({"name": f"{NAME}@{committed.revision_id}"})
    revision_ids = {revision.revision_id for revision in shop.schemas.list_schema_revisions({"name": NAME})}
    assert revision_ids == {rolled_back.revision_id, narrow.revision_id}


@tries("DeleteSchemaRevisionRequest", "revisionId")
def test_the_deprecated_revision_id_still_names_the_revision(shop: Shop) -> None:
    narrow = create(shop)
    commit(shop)
    shop.schemas.delete_schema_revision({"name": NAME, "revision_id": narrow.revision_id})
    assert [revision.definition for revision in shop.schemas.list_schema_revisions({"name": NAME, "view": 2})] == [WIDE]


@tries("ValidateMessageRequest", "parent", "name", "schema", "message", "encoding")
def test_messages_are_validated(shop: Shop) -> None:
    create(shop)
    request = {"parent": PROJECT, "name": NAME, "message": b'{"id": 7}', "encoding": Encoding.JSON}
    shop.schemas.validate_message(request)
    for change in ({"message": b'{"id": "x"}'}, {"encoding": Encoding.BINARY}, {"parent": "shop"}):
        with pytest.raises(exceptions.InvalidArgument):
            shop.schemas.validate_message({**request, **change})
    inline = {"parent": PROJECT, "schema": {"type_": AVRO, "definition": WIDE}, "encoding": Encoding.JSON}
    shop.schemas.validate_message({**inline, "message": b'{"id": 7, "note": "x"}'})


@tries("Topic", "schemaSettings")
@tries("SchemaSettings", "schema", "encoding", "firstRevisionId", "lastRevisionId")
def test_a_topic_accepts_only_messages_that_match_its_schema(shop: Shop) -> None:
    narrow = create(shop)
    wide = commit(shop)
    old, new = '{"id": 7}', '{"id": 7, "note": "x"}'
    accepted: dict[str, list[str]] = {}
    for name, schema_settings in {
        "first": {"first_revision_id": wide.revision_id},
        "last": {"last_revision_id": narrow.revision_id},
        "binary": {"encoding": Encoding.BINARY},
    }.items():
        topic = f"projects/shop/topics/{name}"
        settings = {"schema": NAME, "encoding": Encoding.JSON, **schema_settings}
        shop.publisher.create_topic({"name": topic, "schema_settings": settings})
        accepted[name] = [text for text in (old, new) if is_accepted(shop, topic, text)]
    assert accepted == {"first": [new], "last": [old], "binary": []}


def is_accepted(shop: Shop, topic: str, text: str) -> bool:
    try:
        return bool(shop.publish(text, topic=topic))
    except exceptions.InvalidArgument:
        return False
