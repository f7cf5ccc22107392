"""Schemas over REST."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common import names
from pushhub.common.errors import InvalidArgument, clipped
from subscriptions import lists, selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, message
from subscriptions.api.topics import listed
from subscriptions.paging import Page
from subscriptions.resources import fields
from subscriptions.resources.render import schema_resource
from subscriptions.services import schemas
from subscriptions.services.projects import ensure_project

TAGS = ["schemas"]
SERVICE = "google.pubsub.v1.SchemaService."
VIEWS = ("SCHEMA_VIEW_UNSPECIFIED", "BASIC", "FULL")
VIEW = OpenApiParameter("view", str, enum=VIEWS, description="BASIC leaves out the definition")
SCHEMA_ID = OpenApiParameter("schemaId", str, required=True)
REVISION_ID = OpenApiParameter("revisionId", str, description="Deprecated: use name@revision", deprecated=True)


class SchemaList(ApiView):
    """The schemas of a project."""

    methods = {"GET": SERVICE + "ListSchemas", "POST": SERVICE + "CreateSchema"}

    @extend_schema(
        operation_id="schemas_list", tags=TAGS, parameters=[*PAGING, VIEW], responses=list_of("schemas", fields.SCHEMA)
    )
    def get(self, request: Request, project: str) -> Response:
        page, full = _page(request)
        owner = ensure_project(project=project, caller=caller_of(request))
        rows, token = lists.schemas(owner, page)
        latest = selectors.schema_revisions_latest(rows)
        return Response(listed("schemas", [schema_resource(latest[row.pk], full=full) for row in rows], token))

    @extend_schema(
        operation_id="schemas_create",
        tags=TAGS,
        parameters=[SCHEMA_ID],
        request=body(fields.SCHEMA),
        responses=message(fields.SCHEMA),
    )
    def post(self, request: Request, project: str) -> Response:
        row = schemas.create_schema(
            parent=names.project_name(project),
            schema_id=request.query_params.get("schemaId") or request.query_params.get("schema_id") or "",
            schema=request.data,
            caller=caller_of(request),
        )
        return Response(schema_resource(row))


class SchemaDetail(ApiView):
    """One schema, or one of its revisions."""

    methods = {"GET": SERVICE + "GetSchema", "DELETE": SERVICE + "DeleteSchema"}

    @extend_schema(operation_id="schemas_get", tags=TAGS, parameters=[VIEW], responses=message(fields.SCHEMA))
    def get(self, request: Request, project: str, schema: str) -> Response:
        full = _is_full(request, default="FULL")
        return Response(schema_resource(selectors.schema_named(name=names.schema_name(project, schema)), full=full))

    @extend_schema(operation_id="schemas_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str, schema: str) -> Response:
        schemas.delete_schema(name=names.schema_name(project, schema))
        return Response({})


class SchemaCommit(ApiView):
    """Add a revision to a schema."""

    methods = {"POST": SERVICE + "CommitSchema"}

    @extend_schema(
        operation_id="schemas_commit", tags=TAGS, request=body(fields.COMMIT_SCHEMA), responses=message(fields.SCHEMA)
    )
    def post(self, request: Request, project: str, schema: str) -> Response:
        row = schemas.commit_schema(name=names.schema_name(project, schema), request=request.data)
        return Response(schema_resource(row))


class SchemaRollback(ApiView):
    """Add a revision with the definition of an older one."""

    methods = {"POST": SERVICE + "RollbackSchema"}

    @extend_schema(
        operation_id="schemas_rollback",
        tags=TAGS,
        request=body(fields.ROLLBACK_SCHEMA),
        responses=message(fields.SCHEMA),
    )
    def post(self, request: Request, project: str, schema: str) -> Response:
        row = schemas.rollback_schema(name=names.schema_name(project, schema), request=request.data)
        return Response(schema_resource(row))


class SchemaDeleteRevision(ApiView):
    """Delete a revision of a schema."""

    methods = {"DELETE": SERVICE + "DeleteSchemaRevision"}

    @extend_schema(
        operation_id="schemas_deleteRevision", tags=TAGS, parameters=[REVISION_ID], responses=message(fields.SCHEMA)
    )
    def delete(self, request: Request, project: str, schema: str) -> Response:
        revision_id = request.query_params.get("revisionId") or request.query_params.get("revision_id") or ""
        name = names.schema_name(project, schema)
        return Response(schema_resource(schemas.delete_schema_revision(name=name, revision_id=revision_id)))


class SchemaRevisionList(ApiView):
    """The revisions of a schema, oldest first."""

    methods = {"GET": SERVICE + "ListSchemaRevisions"}

    @extend_schema(
        operation_id="schemas_listRevisions",
        tags=TAGS,
        parameters=[*PAGING, VIEW],
        responses=list_of("schemas", fields.SCHEMA),
    )
    def get(self, request: Request, project: str, schema: str) -> Response:
        page, full = _page(request)
        row = selectors.get_schema(name=names.schema_name(project, schema))
        rows, token = lists.schema_revisions(row, page)
        return Response(listed("schemas", [schema_resource(revision, full=full) for revision in rows], token))


class SchemaValidate(ApiView):
    """Check that a schema could be created."""

    methods = {"POST": SERVICE + "ValidateSchema"}

    @extend_schema(operation_id="schemas_validate", tags=TAGS, request=body(fields.VALIDATE_SCHEMA), responses=EMPTY)
    def post(self, request: Request, project: str) -> Response:
        schemas.validate_schema(schema=request.data)
        return Response({})


class SchemaValidateMessage(ApiView):
    """Check that a message matches a schema."""

    methods = {"POST": SERVICE + "ValidateMessage"}

    @extend_schema(
        operation_id="schemas_validateMessage", tags=TAGS, request=body(fields.VALIDATE_MESSAGE), responses=EMPTY
    )
    def post(self, request: Request, project: str) -> Response:
        schemas.validate_message(request=request.data)
        return Response({})


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
