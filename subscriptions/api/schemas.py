"""Schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from pushhub.common import names
from pushhub.common.errors import InvalidArgument, clipped
from pushhub.common.principals import Principal
from subscriptions import selectors
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.routes import PROJECT, listed, serve
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.resources.render import schema_resource
from subscriptions.services import schemas
from subscriptions.services.projects import ensure_project
from subscriptions.services.rows import check_body_name

SCHEMA = PROJECT + "/schemas/{schema}"
SERVICE = "google.pubsub.v1.SchemaService."
VIEWS = ("SCHEMA_VIEW_UNSPECIFIED", "BASIC", "FULL")
VIEW = OpenApiParameter("view", str, enum=VIEWS, description="BASIC leaves out the definition")
SCHEMA_ID = OpenApiParameter("schemaId", str, required=True)
REVISION_ID = OpenApiParameter("revisionId", str, description="Deprecated: use name@revision", deprecated=True)


@serve("GET", PROJECT + "/schemas", SERVICE, gives=list_of("schemas", fields.SCHEMA), parameters=[*PAGING, VIEW])
def list_schemas(name: str, query: Mapping[str, str], caller: Principal) -> Any:
    """Return the schemas of a project."""
    page, full = _page(query)
    owner = ensure_project(project=names.parse_project(name, field="parent"), caller=caller)
    rows, token = paged(selectors.schemas_of(owner), page, keys=("schema_id",), scope=f"schemas {owner.pk}")
    latest = selectors.schema_revisions_latest(rows, full=full)
    return listed("schemas", [schema_resource(latest[row.pk], full=full) for row in rows], token)


@serve("POST", PROJECT + "/schemas", SERVICE, takes=fields.SCHEMA, gives=fields.SCHEMA, parameters=[SCHEMA_ID])
def create_schema(name: str, query: Mapping[str, str], body: object, caller: Principal) -> Any:
    """Create a schema with its first revision."""
    schema_id = query.get("schemaId") or query.get("schema_id") or ""
    return schema_resource(schemas.create_schema(parent=name, schema_id=schema_id, schema=body, caller=caller))


@serve("GET", SCHEMA, SERVICE, gives=fields.SCHEMA, parameters=[VIEW])
def get_schema(name: str, query: Mapping[str, str]) -> Any:
    """Return a schema, or one of its revisions."""
    full = _is_full(query, default="FULL")
    return schema_resource(selectors.schema_named(name=name), full=full)


delete_schema = serve("DELETE", SCHEMA, SERVICE)(schemas.delete_schema)


@serve("POST", SCHEMA + ":commit", SERVICE, takes=fields.COMMIT_SCHEMA, gives=fields.SCHEMA)
def commit_schema(name: str, body: object) -> Any:
    """Add a revision to a schema."""
    return schema_resource(schemas.commit_schema(name=name, request=body))


@serve("POST", SCHEMA + ":rollback", SERVICE, takes=fields.ROLLBACK_SCHEMA, gives=fields.SCHEMA)
def rollback_schema(name: str, body: object) -> Any:
    """Add a revision with the definition of an older one."""
    return schema_resource(schemas.rollback_schema(name=name, request=body))


@serve("DELETE", SCHEMA + ":deleteRevision", SERVICE, gives=fields.SCHEMA, parameters=[REVISION_ID])
def delete_schema_revision(name: str, query: Mapping[str, str]) -> Any:
    """Delete a revision of a schema."""
    revision_id = query.get("revisionId") or query.get("revision_id") or ""
    return schema_resource(schemas.delete_schema_revision(name=name, revision_id=revision_id))


@serve("GET", SCHEMA + ":listRevisions", SERVICE, gives=list_of("schemas", fields.SCHEMA), parameters=[*PAGING, VIEW])
def list_schema_revisions(name: str, query: Mapping[str, str]) -> Any:
    """Return the revisions of a schema, oldest first."""
    page, full = _page(query)
    schema = selectors.get_schema(name=name)
    rows, token = paged(selectors.schema_revisions_of(schema), page, keys=("pk",), scope=f"revisions {schema.pk}")
    return listed("schemas", [schema_resource(revision, full=full) for revision in rows], token)


@serve("POST", PROJECT + "/schemas:validate", SERVICE, takes=fields.VALIDATE_SCHEMA)
def validate_schema(name: str, body: object) -> None:
    """Check that a schema could be created."""
    names.parse_project(name, field="parent")
    check_body_name(body, name, field="parent")
    schemas.validate_schema(schema=body)


@serve("POST", PROJECT + "/schemas:validateMessage", SERVICE, takes=fields.VALIDATE_MESSAGE)
def validate_message(name: str, body: object) -> None:
    """Check that a message matches a schema."""
    names.parse_project(name, field="parent")
    check_body_name(body, name, field="parent")
    schemas.validate_message(request=body)


def _page(query: Mapping[str, str]) -> tuple[Page, bool]:
    """Return the page and whether it shows full schemas. Full pages are shorter: each schema may have 300 KB."""
    full = _is_full(query, default="BASIC")
    return Page.read(query, cap=selectors.FULL_SCHEMAS_PAGE if full else 1000), full


def _is_full(query: Mapping[str, str], *, default: str) -> bool:
    """Return the view. Clients send its name or, if they ask for numbers, its number."""
    value = query.get("view", "")
    view = VIEWS[int(value)] if value in ("0", "1", "2") else value or VIEWS[0]
    if view not in VIEWS:
        raise InvalidArgument(f"Invalid value at 'view' (TYPE_ENUM), \"{clipped(value)}\"", field="view")
    return (default if view == VIEWS[0] else view) == "FULL"
