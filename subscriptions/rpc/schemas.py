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
from subscriptions.services.projects import project_ensure

Schema = schema.Schema.pb()
BASIC, FULL = int(schema.SchemaView.BASIC), int(schema.SchemaView.FULL)


def _answer(row: SchemaRevision, *, full: bool = True) -> Any:
    return to_message(schema_resource(row, full=full), Schema)


def _page(request: Any) -> tuple[Page, bool]:
    full = request.view == FULL
    query = {"pageSize": str(request.page_size), "pageToken": request.page_token}
    return Page.read(query, cap=selectors.FULL_SCHEMAS_PAGE if full else 1000), full


def schema_create(request: Any, caller: Principal) -> Any:
    resource = to_dict(request.schema)
    row = schemas.schema_create(parent=request.parent, schema_id=request.schema_id, schema=resource, caller=caller)
    return _answer(row)


def schema_get(request: Any, caller: Principal) -> Any:
    return _answer(selectors.schema_named(name=request.name), full=request.view != BASIC)


def schema_list(request: Any, caller: Principal) -> Any:
    page, full = _page(request)
    owner = project_ensure(project=names.parse_project(request.parent, field="parent"), caller=caller)
    rows, token = lists.schemas(owner, page)
    latest = selectors.schema_revisions_latest(rows)
    resources = [_answer(latest[row.pk], full=full) for row in rows]
    return schema.ListSchemasResponse.pb()(schemas=resources, next_page_token=token)


def schema_revisions(request: Any, caller: Principal) -> Any:
    page, full = _page(request)
    row = selectors.schema_get(name=request.name)
    rows, token = lists.schema_revisions(row, page)
    resources = [_answer(revision, full=full) for revision in rows]
    return schema.ListSchemaRevisionsResponse.pb()(schemas=resources, next_page_token=token)


def schema_commit(request: Any, caller: Principal) -> Any:
    return _answer(schemas.schema_commit(name=request.name, request={"schema": to_dict(request.schema)}))


def schema_rollback(request: Any, caller: Principal) -> Any:
    return _answer(schemas.schema_rollback(name=request.name, request={"revisionId": request.revision_id}))


def schema_revision_delete(request: Any, caller: Principal) -> Any:
    return _answer(schemas.schema_revision_delete(name=request.name, revision_id=request.revision_id))


def schema_delete(request: Any, caller: Principal) -> Empty:
    schemas.schema_delete(name=request.name)
    return Empty()


def schema_validate(request: Any, caller: Principal) -> Any:
    names.parse_project(request.parent, field="parent")
    schemas.schema_validate(schema={"parent": request.parent, "schema": to_dict(request.schema)})
    return schema.ValidateSchemaResponse.pb()()


def message_validate(request: Any, caller: Principal) -> Any:
    names.parse_project(request.parent, field="parent")
    values = {"parent": request.parent, "message": base64.b64encode(request.message).decode()}
    if request.WhichOneof("schema_spec"):
        spec = request.WhichOneof("schema_spec")
        values[spec] = request.name if spec == "name" else to_dict(request.schema)
    schemas.message_validate(request={**values, "encoding": request.encoding})
    return schema.ValidateMessageResponse.pb()()


METHODS: dict[str, Method] = {
    "CreateSchema": Unary(schema.CreateSchemaRequest.pb(), Schema, schema_create),
    "GetSchema": Unary(schema.GetSchemaRequest.pb(), Schema, schema_get),
    "ListSchemas": Unary(schema.ListSchemasRequest.pb(), schema.ListSchemasResponse.pb(), schema_list),
    "ListSchemaRevisions": Unary(
        schema.ListSchemaRevisionsRequest.pb(), schema.ListSchemaRevisionsResponse.pb(), schema_revisions
    ),
    "CommitSchema": Unary(schema.CommitSchemaRequest.pb(), Schema, schema_commit),
    "RollbackSchema": Unary(schema.RollbackSchemaRequest.pb(), Schema, schema_rollback),
    "DeleteSchemaRevision": Unary(schema.DeleteSchemaRevisionRequest.pb(), Schema, schema_revision_delete),
    "DeleteSchema": Unary(schema.DeleteSchemaRequest.pb(), Empty, schema_delete),
    "ValidateSchema": Unary(schema.ValidateSchemaRequest.pb(), schema.ValidateSchemaResponse.pb(), schema_validate),
    "ValidateMessage": Unary(
        schema.ValidateMessageRequest.pb(),
        schema.ValidateMessageResponse.pb(),
        message_validate,
        most_bytes=LARGE_REQUEST_BYTES,
    ),
}
