"""Projects, in the form of Resource Manager v1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from pushhub.common.principals import Principal
from pushhub.common.protojson import format_timestamp
from subscriptions import selectors
from subscriptions.api.openapi import PAGING, list_of
from subscriptions.api.routes import PROJECT, listed, serve
from subscriptions.iam import tree
from subscriptions.paging import Page, paged
from subscriptions.resources import fields
from subscriptions.services import projects

PROJECTS = "v1/projects"
TYPES = "type.googleapis.com/google.cloudresourcemanager.v1"
DEFAULT_PAGE, LARGEST_PAGE = 100, 300
SERVICE = "google.cloudresourcemanager.v1."
FILTER = OpenApiParameter("filter", str)


@serve("GET", PROJECTS, SERVICE, gives=list_of("projects", fields.PROJECT), parameters=[*PAGING, FILTER])
def list_projects(query: Mapping[str, str], caller: Principal) -> Any:
    """Return the projects that the caller may get."""
    page = Page.read(query, default=DEFAULT_PAGE, cap=LARGEST_PAGE)
    visible = projects.projects_visible(caller, filter=query.get("filter", ""))
    rows, token = paged(visible, page, keys=("project_id",), scope="projects")
    return listed("projects", [projects.project_resource(row) for row in rows], token)


@serve("POST", PROJECTS, SERVICE, takes=fields.PROJECT, gives=fields.OPERATION)
def create_project(body: object, caller: Principal) -> Any:
    """Create a project."""
    project = projects.create_project_request(request=body, caller=caller)
    # A long-running operation that has finished.
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


@serve("GET", PROJECT, SERVICE, gives=fields.PROJECT)
def get_project(project: str) -> Any:
    """Return a project, by its id or its number."""
    return projects.project_resource(selectors.get_project(project=project))


@serve("PUT", PROJECT, SERVICE, operation_id="projects_update", takes=fields.PROJECT, gives=fields.PROJECT)
def update_project(project: str, body: object) -> Any:
    """Replace the name and the labels of a project; its parent stays."""
    return projects.project_resource(projects.update_project(project=project, request=body))


delete_project = serve("DELETE", PROJECT, SERVICE)(projects.delete_project)
undelete_project = serve("POST", PROJECT + ":undelete", SERVICE, takes=fields.EMPTY)(projects.undelete_project)


@serve("POST", PROJECT + ":getAncestry", SERVICE, takes=fields.EMPTY, gives=fields.ANCESTRY)
def get_ancestry(project: str) -> Any:
    """Return the project and the folders and organization above it, nearest first."""
    lineage = tree.lineage(selectors.get_project(project=project))
    return {"ancestor": [{"resourceId": projects.resource_id(resource)} for resource in lineage]}
