"""google.pubsub.v1.SchemaService."""

from __future__ import annotations

import base64
from typing import Any

from google.protobuf.empty_pb2 import Empty

from pushhub.common import names
from pushhub.common.principals import Principal
from pushhub.common.pubsubtypes import schema
from subscriptions import lists, selectors
from subscriptions.models.schemas import SchemaRevision
from subscriptions.paging import Page
from subscriptions.resources.render import schema_resource
from subscriptions.rpc.calls import LARGE_REQUEST_BYTES, Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message
from subscriptions.services import schemas
from subscriptions.services.projects import ensure_project

Schema = schema.Schema.pb()
BASIC, FULL = int(schema.SchemaView.BASIC), int(schema.SchemaView.FULL)


def _answer(row: SchemaRevision, *, full: bool = True) -> Any:
    return to_message(schema_resource(row, full=full), Schema)


def _page(request: Any) -> tuple[Page, bool]:
    full = request.view == FULL
    query = {"pageSize": str(request.page_size), "pageToken": request.page_token}
    return Page.read(query, cap=selectors.FULL_SCHEMAS_PAGE if full else 1000), full


def create_schema(request: Any, caller: Principal) -> Any:
    resource = to_dict(request.schema)
    row = schemas.create_schema(parent=request.parent, schema_id=request.schema_id, schema=resource, caller=caller)
    return _answer(row)


def get_schema(request: Any, caller: Principal) -> Any:
    return _answer(selectors.schema_named(name=request.name), full=request.view != BASIC)


def list_schemas(request: Any, caller: Principal) -> Any:
    page, full = _page(request)
    owner = ensure_project(project=names.parse_project(request.parent, field="parent"), caller=caller)
    rows, token = lists.schemas(owner, page)
    latest = selectors.schema_revisions_latest(rows)
    resources = [_answer(latest[row.pk], full=full) for row in rows]
    return schema.ListSchemasResponse.pb()(schemas=resources, next_page_token=token)


def schema_revisions(request: Any, caller: Principal) -> Any:
    page, full = _page(request)
    row = selectors.get_schema(name=request.name)
    rows, token = lists.schema_revisions(row, page)
    resources = [_answer(revision, full=full) for revision in rows]
    return schema.ListSchemaRevisionsResponse.pb()(schemas=resources, next_page_token=token)


def commit_schema(request: Any, caller: Principal) -> Any:
    return _answer(schemas.commit_schema(name=request.name, request={"schema": to_dict(request.schema)}))


def rollback_schema(request: Any, caller: Principal) -> Any:
    return _answer(schemas.rollback_schema(name=request.name, request={"revisionId": request.revision_id}))


def delete_schema_revision(request: Any, caller: Principal) -> Any:
    return _answer(schemas.delete_schema_revision(name=request.name, revision_id=request.revision_id))


def delete_schema(request: Any, caller: Principal) -> Empty:
    schemas.delete_schema(name=request.name)
    return Empty()


def validate_schema(request: Any, caller: Principal) -> Any:
    names.parse_project(request.parent, field="parent")
    schemas.validate_schema(schema={"parent": request.parent, "schema": to_dict(request.schema)})
    return schema.ValidateSchemaResponse.pb()()


def validate_message(request: Any, caller: Principal) -> Any:
    names.parse_project(request.parent, field="parent")
    values = {"parent": request.parent, "message": base64.b64encode(request.message).decode()}
    if request.WhichOneof("schema_spec"):
        spec = request.WhichOneof("schema_spec")
        values[spec] = request.name if spec == "name" else to_dict(request.schema)
    schemas.validate_message(request={**values, "encoding": request.encoding})
    return schema.ValidateMessageResponse.pb()()


METHODS: dict[str, Method] = {
    "CreateSchema": Unary(schema.CreateSchemaRequest.pb(), Schema, create_schema),
    "GetSchema": Unary(schema.GetSchemaRequest.pb(), Schema, get_schema),
    "ListSchemas": Unary(schema.ListSchemasRequest.pb(), schema.ListSchemasResponse.pb(), list_schemas),
    "ListSchemaRevisions": Unary(
        schema.ListSchemaRevisionsRequest.pb(), schema.ListSchemaRevisionsResponse.pb(), schema_revisions
    ),
    "CommitSchema": Unary(schema.CommitSchemaRequest.pb(), Schema, commit_schema),
    "RollbackSchema": Unary(schema.RollbackSchemaRequest.pb(), Schema, rollback_schema),
    "DeleteSchemaRevision": Unary(schema.DeleteSchemaRevisionRequest.pb(), Schema, delete_schema_revision),
    "DeleteSchema": Unary(schema.DeleteSchemaRequest.pb(), Empty, delete_schema),
    "ValidateSchema": Unary(schema.ValidateSchemaRequest.pb(), schema.ValidateSchemaResponse.pb(), validate_schema),
    "ValidateMessage": Unary(
        schema.ValidateMessageRequest.pb(),
        schema.ValidateMessageResponse.pb(),
        validate_message,
        most_bytes=LARGE_REQUEST_BYTES,
    ),
}
