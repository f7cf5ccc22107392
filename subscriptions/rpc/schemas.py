"""google.pubsub.v1.SchemaService."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1.types import schema as types

from pushhub import names
from pushhub.principals import Principal
from subscriptions import schemas, selectors, services
from subscriptions.paging import Page, paged
from subscriptions.resources import schema_resource
from subscriptions.rpc.calls import Method, Unary
from subscriptions.rpc.protobuf import to_dict, to_message
from subscriptions.schemamodels import SchemaRevision

Schema = types.Schema.pb()
BASIC, FULL = types.SchemaView.BASIC, types.SchemaView.FULL
#: A schema may have 300 KB, so a page of whole ones has fewer.
FULL_PAGE = 100


def shown(row: SchemaRevision, view: int = FULL) -> Any:
    return to_message(schema_resource(row, full=view == FULL), Schema)


def create(request: Any, caller: Principal) -> Any:
    given = to_dict(request.schema)
    given.pop("name", None)  # clients may fill in what the id will make of it
    row = schemas.schema_create(parent=request.parent, schema_id=request.schema_id, schema=given, caller=caller)
    return shown(row)


def get(request: Any, caller: Principal) -> Any:
    return shown(selectors.schema_named(name=request.name), request.view or FULL)


def list_all(request: Any, caller: Principal) -> Any:
    owner = services.project_ensure(project=names.parse_project(request.parent, field="parent"), caller=caller)
    view = request.view or BASIC
    rows, token = paged(
        selectors.schemas_of(owner), _page(request, view), keys=("schema_id",), scope=f"schemas {owner.pk}"
    )
    latest = selectors.schema_revisions_latest(rows)
    found = [shown(latest[row.pk], view) for row in rows]
    return types.ListSchemasResponse.pb()(schemas=found, next_page_token=token)


def list_revisions(request: Any, caller: Principal) -> Any:
    row = selectors.schema_get(name=request.name)
    view = request.view or BASIC
    rows, token = paged(
        selectors.schema_revisions_of(row), _page(request, view), keys=("pk",), scope=f"revisions {row.pk}"
    )
    found = [shown(one, view) for one in rows]
    return types.ListSchemaRevisionsResponse.pb()(schemas=found, next_page_token=token)


def commit(request: Any, caller: Principal) -> Any:
    return shown(schemas.schema_commit(name=request.name, request=to_dict(request)))


def rollback(request: Any, caller: Principal) -> Any:
    return shown(schemas.schema_rollback(name=request.name, request=to_dict(request)))


def delete_revision(request: Any, caller: Principal) -> Any:
    return shown(schemas.schema_revision_delete(name=request.name, revision_id=request.revision_id))


def delete(request: Any, caller: Principal) -> Empty:
    schemas.schema_delete(name=request.name)
    return Empty()


def validate(request: Any, caller: Principal) -> Any:
    schemas.schema_validate(schema=to_dict(request))
    return types.ValidateSchemaResponse.pb()()


def validate_message(request: Any, caller: Principal) -> Any:
    schemas.message_validate(request=to_dict(request))
    return types.ValidateMessageResponse.pb()()


def _page(request: Any, view: int) -> Page:
    query = {"pageSize": str(request.page_size), "pageToken": request.page_token}
    return Page.read(query, cap=FULL_PAGE if view == FULL else 1000)


METHODS: dict[str, Method] = {
    "CreateSchema": Unary(types.CreateSchemaRequest.pb(), Schema, create),
    "GetSchema": Unary(types.GetSchemaRequest.pb(), Schema, get),
    "ListSchemas": Unary(types.ListSchemasRequest.pb(), types.ListSchemasResponse.pb(), list_all),
    "ListSchemaRevisions": Unary(
        types.ListSchemaRevisionsRequest.pb(), types.ListSchemaRevisionsResponse.pb(), list_revisions
    ),
    "CommitSchema": Unary(types.CommitSchemaRequest.pb(), Schema, commit),
    "RollbackSchema": Unary(types.RollbackSchemaRequest.pb(), Schema, rollback),
    "DeleteSchemaRevision": Unary(types.DeleteSchemaRevisionRequest.pb(), Schema, delete_revision),
    "DeleteSchema": Unary(types.DeleteSchemaRequest.pb(), Empty, delete),
    "ValidateSchema": Unary(types.ValidateSchemaRequest.pb(), types.ValidateSchemaResponse.pb(), validate),
    "ValidateMessage": Unary(types.ValidateMessageRequest.pb(), types.ValidateMessageResponse.pb(), validate_message),
}
