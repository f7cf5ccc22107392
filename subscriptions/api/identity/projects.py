"""Projects over REST, in the form of Resource Manager v1."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of
from subscriptions.api.openapi import EMPTY, PAGING, body, list_of, message
from subscriptions.api.topics import listed
from subscriptions.iam import tree
from subscriptions.models import Project
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.services import projects

TAGS = ["projects"]
TYPES = "type.googleapis.com/google.cloudresourcemanager.v1"
DEFAULT_PAGE, LARGEST_PAGE = 100, 300
SERVICE = "google.cloudresourcemanager.v1"


class ProjectList(ApiView):
    """The projects that the caller may get."""

    methods = {"GET": f"{SERVICE}.ListProjects", "POST": f"{SERVICE}.CreateProject"}

    @extend_schema(
        operation_id="projects_list",
        tags=TAGS,
        parameters=[*PAGING, OpenApiParameter("filter", str)],
        responses=list_of("projects", fields.PROJECT),
    )
    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
        wanted = request.query_params.get("filter", "")
        rows, token = paged(
            projects.projects_visible(caller_of(request), filter=wanted), page, keys=("project_id",), scope="projects"
        )
        return Response(listed("projects", [projects.project_resource(row) for row in rows], token))

    @extend_schema(
        operation_id="projects_create", tags=TAGS, request=body(fields.PROJECT), responses=message(fields.OPERATION)
    )
    def post(self, request: Request) -> Response:
        project_row = projects.create_project_request(request=request.data, caller=caller_of(request))
        return Response(_creation(project_row))


class ProjectDetail(ApiView):
    """One project, by its id or its number."""

    methods = {
        "GET": f"{SERVICE}.GetProject",
        "PUT": f"{SERVICE}.UpdateProject",
        "DELETE": f"{SERVICE}.DeleteProject",
    }

    @extend_schema(operation_id="projects_get", tags=TAGS, responses=message(fields.PROJECT))
    def get(self, request: Request, project: str) -> Response:
        return Response(projects.project_resource(selectors.get_project(project=project)))

    @extend_schema(
        operation_id="projects_update", tags=TAGS, request=body(fields.PROJECT), responses=message(fields.PROJECT)
    )
    def put(self, request: Request, project: str) -> Response:
        return Response(projects.project_resource(projects.update_project(project=project, request=request.data)))

    @extend_schema(operation_id="projects_delete", tags=TAGS, responses=EMPTY)
    def delete(self, request: Request, project: str) -> Response:
        projects.delete_project(project=project)
        return Response({})


class ProjectUndelete(ApiView):
    """Undelete a project."""

    methods = {"POST": f"{SERVICE}.UndeleteProject"}

    @extend_schema(operation_id="projects_undelete", tags=TAGS, request=body(fields.EMPTY), responses=EMPTY)
    def post(self, request: Request, project: str) -> Response:
        fields.EMPTY.read(request.data)
        projects.undelete_project(project=project)
        return Response({})


class ProjectAncestry(ApiView):
    """The project and the folders and organization above it, nearest first."""

    methods = {"POST": f"{SERVICE}.GetAncestry"}

    @extend_schema(
        operation_id="projects_getAncestry", tags=TAGS, request=body(fields.EMPTY), responses=message(fields.ANCESTRY)
    )
    def post(self, request: Request, project: str) -> Response:
        fields.EMPTY.read(request.data)
        lineage = tree.lineage(selectors.get_project(project=project))
        return Response({"ancestor": [{"resourceId": projects.resource_id(resource)} for resource in lineage]})


def _creation(project: Project) -> dict[str, Any]:
    """Return a long-running operation that has finished."""
    return {
        "name": f"operations/cp.{project.number}",
        "metadata": {
            "@type": f"{TYPES}.ProjectCreationStatus",
            "createTime": format_timestamp(project.created_at),
            "gettable": True,
            "ready": True,
        },
        "done": True,
        "response": {"@type": f"{TYPES}.Project", **projects.project_resource(project)},
    }
