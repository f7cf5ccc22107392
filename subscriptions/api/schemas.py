"""Schemas over REST."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from pushhub.common import names
from pushhub.common.errors import InvalidArgument, clipped
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.render import schema_resource
from subscriptions.services import schemas
from subscriptions.services.projects import ensure_project

SERVICE = "google.pubsub.v1.SchemaService."
VIEWS = ("SCHEMA_VIEW_UNSPECIFIED", "BASIC", "FULL")
VIEW = OpenApiParameter("view", str, enum=VIEWS, description="BASIC leaves out the definition")
SCHEMA_ID = OpenApiParameter("schemaId", str, required=True)
REVISION_ID = OpenApiParameter("revisionId", str, description="Deprecated: use name@revision", deprecated=True)


class SchemaList(ApiView):
    """The schemas of a project."""

    @serve(SERVICE + "ListSchemas", "schemas_list", gives=list_of("schemas", fields.SCHEMA), parameters=[*PAGING, VIEW])
    def get(self, request: Request, project: str) -> Any:
        page, full = _page(request)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.schemas(owner, page)
        latest = selectors.schema_revisions_latest(rows)
        return listed("schemas", [schema_resource(latest[row.pk], full=full) for row in rows], token)

    @serve(SERVICE + "CreateSchema", "schemas_create", takes=fields.SCHEMA, gives=fields.SCHEMA, parameters=[SCHEMA_ID])
    def post(self, request: Request, project: str) -> Any:
        row = schemas.create_schema(
            parent=names.project_name(project),
            schema_id=request.query_params.get("schemaId") or request.query_params.get("schema_id") or "",
            schema=request.data,
            caller=caller_of(request),
        )
        return schema_resource(row)


class SchemaDetail(ApiView):
    """One schema, or one of its revisions."""

    @serve(SERVICE + "GetSchema", "schemas_get", gives=fields.SCHEMA, parameters=[VIEW])
    def get(self, request: Request, name: str) -> Any:
        full = _is_full(request, default="FULL")
        return schema_resource(selectors.schema_named(name=name), full=full)

    @serve(SERVICE + "DeleteSchema", "schemas_delete")
    def delete(self, request: Request, name: str) -> None:
        schemas.delete_schema(name=name)


class SchemaCommit(ApiView):
    """Add a revision to a schema."""

    @serve(SERVICE + "CommitSchema", "schemas_commit", takes=fields.COMMIT_SCHEMA, gives=fields.SCHEMA)
    def post(self, request: Request, name: str) -> Any:
        row = schemas.commit_schema(name=name, request=request.data)
        return schema_resource(row)


class SchemaRollback(ApiView):
    """Add a revision with the definition of an older one."""

    @serve(SERVICE + "RollbackSchema", "schemas_rollback", takes=fields.ROLLBACK_SCHEMA, gives=fields.SCHEMA)
    def post(self, request: Request, name: str) -> Any:
        row = schemas.rollback_schema(name=name, request=request.data)
        return schema_resource(row)


class SchemaDeleteRevision(ApiView):
    """Delete a revision of a schema."""

    @serve(SERVICE + "DeleteSchemaRevision", "schemas_deleteRevision", gives=fields.SCHEMA, parameters=[REVISION_ID])
    def delete(self, request: Request, name: str) -> Any:
        revision_id = request.query_params.get("revisionId") or request.query_params.get("revision_id") or ""
        return schema_resource(schemas.delete_schema_revision(name=name, revision_id=revision_id))


class SchemaRevisionList(ApiView):
    """The revisions of a schema, oldest first."""

    @serve(
        SERVICE + "ListSchemaRevisions",
        "schemas_listRevisions",
        gives=list_of("schemas", fields.SCHEMA),
        parameters=[*PAGING, VIEW],
    )
    def get(self, request: Request, name: str) -> Any:
        page, full = _page(request)
        row = selectors.get_schema(name=name)
        rows, token = lists.schema_revisions(row, page)
        return listed("schemas", [schema_resource(revision, full=full) for revision in rows], token)


class SchemaValidate(ApiView):
    """Check that a schema could be created."""

    @serve(SERVICE + "ValidateSchema", "schemas_validate", takes=fields.VALIDATE_SCHEMA)
    def post(self, request: Request, project: str) -> None:
        schemas.validate_schema(schema=request.data)


class SchemaValidateMessage(ApiView):
    """Check that a message matches a schema."""

    @serve(SERVICE + "ValidateMessage", "schemas_validateMessage", takes=fields.VALIDATE_MESSAGE)
    def post(self, request: Request, project: str) -> None:
        schemas.validate_message(request=request.data)


def _page(request: Request) -> tuple[Page, bool]:
    """Return the page and whether it shows full schemas. Full pages are shorter: each schema may have 300 KB."""
    full = _is_full(request, default="BASIC")
    return Page.read(request.query_params, cap=selectors.FULL_SCHEMAS_PAGE if full else 1000), full


def _is_full(request: Request, *, default: str) -> bool:
    """Return the view. Clients send its name or, if they ask for numbers, its number."""
    value = request.query_params.get("view", "")
    view = VIEWS[int(value)] if value in ("0", "1", "2") else value or VIEWS[0]
    if view not in VIEWS:
        raise InvalidArgument(f"Invalid value at 'view' (TYPE_ENUM), \"{clipped(value)}\"", field="view")
    return (default if view == VIEWS[0] else view) == "FULL"
