"""Projects over REST, in the form of Resource Manager v1."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request

from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.base import ApiView, caller_of, serve
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.topics import listed
from subscriptions.iam import tree
from subscriptions.models import Project
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.services import projects

TYPES = "type.googleapis.com/google.cloudresourcemanager.v1"
DEFAULT_PAGE, LARGEST_PAGE = 100, 300
SERVICE = "google.cloudresourcemanager.v1"


class ProjectList(ApiView):
    """The projects that the caller may get."""

    @serve(
        f"{SERVICE}.ListProjects",
        "projects_list",
        gives=list_of("projects", fields.PROJECT),
        parameters=[*PAGING, OpenApiParameter("filter", str)],
    )
    def get(self, request: Request) -> Any:
        page = Page.read(request.query_params, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
        wanted = request.query_params.get("filter", "")
        rows, token = paged(
            projects.projects_visible(caller_of(request), filter=wanted), page, keys=("project_id",), scope="projects"
        )
        return listed("projects", [projects.project_resource(row) for row in rows], token)

    @serve(f"{SERVICE}.CreateProject", "projects_create", takes=fields.PROJECT, gives=fields.OPERATION)
    def post(self, request: Request) -> Any:
        project_row = projects.create_project_request(request=request.data, caller=caller_of(request))
        return _creation(project_row)


class ProjectDetail(ApiView):
    """One project, by its id or its number."""

    @serve(f"{SERVICE}.GetProject", "projects_get", gives=fields.PROJECT)
    def get(self, request: Request, project: str) -> Any:
        return projects.project_resource(selectors.get_project(project=project))

    @serve(f"{SERVICE}.UpdateProject", "projects_update", takes=fields.PROJECT, gives=fields.PROJECT)
    def put(self, request: Request, project: str) -> Any:
        return projects.project_resource(projects.update_project(project=project, request=request.data))

    @serve(f"{SERVICE}.DeleteProject", "projects_delete")
    def delete(self, request: Request, project: str) -> None:
        projects.delete_project(project=project)


class ProjectUndelete(ApiView):
    """Undelete a project."""

    @serve(f"{SERVICE}.UndeleteProject", "projects_undelete", takes=fields.EMPTY)
    def post(self, request: Request, project: str) -> None:
        fields.EMPTY.read(request.data)
        projects.undelete_project(project=project)


class ProjectAncestry(ApiView):
    """The project and the folders and organization above it, nearest first."""

    @serve(f"{SERVICE}.GetAncestry", "projects_getAncestry", takes=fields.EMPTY, gives=fields.ANCESTRY)
    def post(self, request: Request, project: str) -> Any:
        fields.EMPTY.read(request.data)
        lineage = tree.lineage(selectors.get_project(project=project))
        return {"ancestor": [{"resourceId": projects.resource_id(resource)} for resource in lineage]}


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
